// A PathProfile as text: a header, then for every layer and path length the paths in ascending
// order.
#include <bit>
#include <charconv>

#include "engine/base/errors.h"
#include "engine/placement/path_profile.h"

namespace moe {
namespace {

constexpr std::string_view kMagic = "moebench popularity 1";

/// Reads the lines of a profile; errors name the number of the line, from 1.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  std::string_view next() {
    ++number_;
    if (rest_.empty()) fail("the profile ends here, but its last line must be 'end'");
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return line;
  }

  /// Reads from `line` first the text `word` (may be empty), then a number from lo to hi.
  int64_t number(std::string_view& line, std::string_view word, int64_t lo, int64_t hi) const {
    if (!line.starts_with(word)) fail(fmt::format("expected '{}' at '{}'", word, line));
    line.remove_prefix(word.size());
    while (line.starts_with(' ')) line.remove_prefix(1);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    if (error != std::errc() || value < lo || value > hi) {
      fail(fmt::format("expected a number from {} to {} at '{}'", lo, hi, line));
    }
    line.remove_prefix(static_cast<size_t>(end - line.data()));
    while (line.starts_with(' ')) line.remove_prefix(1);
    return value;
  }

  bool at_end() const { return rest_.empty(); }
  [[noreturn]] void fail(const std::string& what) const {
    throw user_error("popularity: line {}: {}", number_, what);
  }

 private:
  std::string_view rest_;
  int64_t number_ = 0;
};

PathOptions parse_options(Lines& lines) {
  std::string_view line = lines.next();
  if (line != kMagic) lines.fail(fmt::format("expected '{}' at '{}'", kMagic, line));
  line = lines.next();
  PathOptions options;
  options.layers = lines.number(line, "layers", 1, 1 << 16);
  options.experts = lines.number(line, "experts", 1, 1 << 20);
  options.path = lines.number(line, "path", 1, 63);
  options.keep = lines.number(line, "keep", 1, options.experts);
  options.shorter = lines.number(line, "shorter", 0, 1) == 1;
  return options;
}

}  // namespace

std::string PathProfile::text() const {
  std::string out =
      fmt::format("{}\nlayers {} experts {} path {} keep {} shorter {}\n", kMagic, options_.layers,
                  options_.experts, options_.path, options_.keep, options_.shorter ? 1 : 0);
  const int bits = std::bit_width(static_cast<uint64_t>(options_.experts));
  const uint64_t place = (uint64_t{1} << bits) - 1;
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    for (int64_t length = shortest(); length <= options_.path; ++length) {
      const Table& t = table(layer, length);
      out += fmt::format("layer {} length {} paths {}\n", layer, length, t.paths.size());
      for (size_t row = 0; row < t.paths.size(); ++row) {
        for (int64_t i = length - 1; i >= 0; --i) {
          out += fmt::format("{} ", ((t.paths[row] >> (bits * i)) & place) - 1);
        }
        out += ":";
        for (int64_t i = 0; i < options_.keep; ++i) {
          const Kept& kept = t.kept[row * static_cast<size_t>(options_.keep) + size_t(i)];
          if (kept.mass > 0) out += fmt::format(" {} {}", kept.expert, kept.mass);
        }
        out += "\n";
      }
    }
  }
  return out + "end\n";
}

PathProfile PathProfile::parse(std::string_view text) {
  Lines lines(text);
  const PathOptions options = parse_options(lines);
  PathProfile profile(options);
  const int64_t last = options.experts - 1;
  const int bits = std::bit_width(static_cast<uint64_t>(options.experts));
  const auto parse_row = [&](Table& t, int64_t length) {
    std::string_view line = lines.next();
    uint64_t path = 0;
    for (int64_t i = 0; i < length; ++i) {
      path = (path << bits) | static_cast<uint64_t>(lines.number(line, "", 0, last) + 1);
    }
    if (!t.paths.empty() && path <= t.paths.back())
      lines.fail("paths are not in ascending order; sort them");
    t.paths.push_back(path);
    if (!line.starts_with(":"))
      lines.fail(fmt::format("expected ':' after the path, at '{}'", line));
    line.remove_prefix(1);
    int64_t left = kMassOne;
    for (int64_t i = 0; i < options.keep; ++i) {
      Kept kept;
      if (!line.empty()) {
        kept.expert = static_cast<int32_t>(lines.number(line, i == 0 ? " " : "", 0, last));
        kept.mass = static_cast<uint32_t>(lines.number(line, "", 1, left));
        left -= kept.mass;
      }
      t.kept.push_back(kept);
    }
    if (!line.empty())
      lines.fail(fmt::format("the path has more experts than keep = {} allows", options.keep));
  };
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    for (int64_t length = profile.shortest(); length <= options.path; ++length) {
      Table& t = profile.table(layer, length);
      std::string_view line = lines.next();
      lines.number(line, "layer", layer, layer);
      lines.number(line, "length", length, length);
      const int64_t paths = lines.number(line, "paths", 0, int64_t{1} << 31);
      for (int64_t row = 0; row < paths; ++row) parse_row(t, length);
      t.index(options.keep);
    }
  }
  if (lines.next() != "end" || !lines.at_end()) lines.fail("expected 'end' and nothing after it");
  return profile;
}

}  // namespace moe
