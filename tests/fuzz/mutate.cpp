#include "tests/fuzz/mutate.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/fnv.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace moe::fuzz {
namespace {

using nlohmann::json;

size_t below(size_t n, Random& random) {
  return std::uniform_int_distribution<size_t>(0, n - 1)(random);
}
bool one_in(size_t n, Random& random) {
  return below(n, random) == 0;
}

const char* const kNumbers[] = {"0",
                                "-0.0",
                                "1",
                                "-1",
                                "2",
                                "3",
                                "10",
                                "64",
                                "127",
                                "255",
                                "256",
                                "1000",
                                "32767",
                                "32768",
                                "65534",
                                "65535",
                                "65536",
                                "1000000",
                                "16777216",
                                "1000000000",
                                "2147483647",
                                "2147483648",
                                "4294967295",
                                "4294967296",
                                "9007199254740993",
                                "-2147483648",
                                "1000000000000",
                                "9223372036854775807",
                                "9223372036854775808",
                                "-9223372036854775808",
                                "18446744073709551615",
                                "1e308",
                                "1e-320",
                                "-5",
                                "0.5"};
// Of texts that are no JSON.
const char* const kNoNumbers[] = {"nan", "inf", "-inf", "1e999", "", "0x10", "N/A", "x", "1;2"};

std::vector<json*> nodes_of(json& root) {
  std::vector<json*> nodes = {&root};
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i]->is_structured()) continue;
    for (json& child : *nodes[i]) nodes.push_back(&child);
  }
  return nodes;
}

/// Any node; a whole list or object as often as one of its many numbers.
json& some_node(json& root, Random& random) {
  json* node = &root;
  while (node->is_structured() && !node->empty() && !one_in(3, random)) {
    node = &*std::next(node->begin(), static_cast<std::ptrdiff_t>(below(node->size(), random)));
  }
  return *node;
}

json other_value(Random& random) {
  switch (below(8, random)) {
    case 0:
      return nullptr;
    case 1:
      return one_in(2, random);
    case 2:
      return "text";
    case 3:
      return json::array();
    case 4:
      return json::object();
    default:
      return json::parse(interesting_number(random));
  }
}

/// All numbers of a value become one.
void fill(json& value, const json& number) {
  for (json* node : nodes_of(value)) {
    if (node->is_number()) *node = number;
  }
}

void mutate_list(json& list, Random& random) {
  if (list.empty()) return list.push_back(other_value(random));
  const size_t at = below(list.size(), random);
  switch (below(4, random)) {
    case 0:
      list.erase(at);
      break;
    case 1:
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(at), json(list[at]));
      break;
    case 2:
      std::swap(list[at], list[below(list.size(), random)]);
      break;
    default:
      for (size_t n = below(20, random); n > 0; --n) list.push_back(json(list[at]));
  }
}

void mutate_object(json& object, Random& random) {
  if (object.empty()) return;
  const auto a =
      std::next(object.begin(), static_cast<std::ptrdiff_t>(below(object.size(), random)));
  const auto b =
      std::next(object.begin(), static_cast<std::ptrdiff_t>(below(object.size(), random)));
  switch (below(3, random)) {
    case 0:
      object.erase(a);
      break;
    case 1:
      *a = json(*b);
      break;
    default:
      object[a.key() + "x"] = json(*b);
  }
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string mutate_lines(std::string_view text, Random& random) {
  std::vector<std::string> lines = lines_of(text);
  if (lines.empty()) return "0";
  const size_t at = below(lines.size(), random), to = below(lines.size(), random);
  const auto place = [&](size_t i) { return lines.begin() + static_cast<std::ptrdiff_t>(i); };
  switch (below(4, random)) {
    case 0:
      lines.erase(place(at));
      break;
    case 1:
      lines.insert(place(to), std::string(lines[at]));
      break;
    case 2:
      std::swap(lines[at], lines[to]);
      break;
    default:
      lines[at].resize(below(lines[at].size() + 1, random));
  }
  return joined(lines);
}

/// Begin and end of all words and numbers of a text.
std::vector<std::pair<size_t, size_t>> tokens_of(std::string_view text) {
  std::vector<std::pair<size_t, size_t>> tokens;
  const auto inside = [&](size_t i) {
    const auto c = static_cast<unsigned char>(text[i]);
    return std::isalnum(c) || c == '.' || c == '-' || c == '+' || c == '_';
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t begin = i;
    while (i < text.size() && inside(i)) ++i;
    if (i > begin) tokens.emplace_back(begin, i);
  }
  return tokens;
}

}  // namespace

std::string interesting_number(Random& random) {
  if (one_in(4, random)) return std::to_string(static_cast<int64_t>(below(300, random)));
  if (!one_in(8, random)) return kNumbers[below(std::size(kNumbers), random)];
  const int64_t power = int64_t{1} << below(63, random);
  return std::to_string(power + static_cast<int64_t>(below(3, random)) - 1);
}

std::string mutate_json(std::string_view text, Random& random, std::string_view sample) {
  json root = json::parse(text, nullptr, false);
  if (root.is_discarded()) root = json::parse(sample);
  for (size_t n = 1 + below(3, random); n > 0; --n) {
    json& node = some_node(root, random);
    if (one_in(6, random)) {
      fill(node, json::parse(interesting_number(random)));
    } else if (node.is_array() && !one_in(8, random)) {
      mutate_list(node, random);
    } else if (node.is_object() && !one_in(8, random)) {
      mutate_object(node, random);
    } else if (one_in(8, random)) {
      node = json(some_node(root, random));
    } else {
      node = other_value(random);
    }
  }
  return root.dump();
}

std::string mutate_text(std::string_view text, Random& random) {
  const auto tokens = tokens_of(text);
  if (tokens.empty() || one_in(3, random)) return mutate_lines(text, random);
  const auto [begin, end] = tokens[below(tokens.size(), random)];
  std::string other = interesting_number(random);
  if (one_in(6, random)) other = kNoNumbers[below(std::size(kNoNumbers), random)];
  if (one_in(6, random)) {
    const auto [from, to] = tokens[below(tokens.size(), random)];
    other = text.substr(from, to - from);
  }
  return std::string(text.substr(0, begin)) + other + std::string(text.substr(end));
}

std::string mutate_json_lines(std::string_view text, Random& random, std::string_view sample) {
  std::vector<std::string> lines = lines_of(text);
  if (lines.empty() || one_in(4, random)) return mutate_lines(text, random);
  std::string& line = lines[below(lines.size(), random)];
  line = mutate_json(line, random, sample);
  return joined(lines);
}

std::string mutate_bytes(std::string_view bytes, Random& random) {
  std::string out(bytes);
  const size_t at = below(out.size() + 1, random);
  const size_t n = std::min(out.size() - at, 1 + below(24, random));
  switch (below(8, random)) {
    case 0:
      out.erase(at, n);
      break;
    case 1:
      out.insert(at, out.substr(at, n));
      break;
    case 2:
      out.resize(at);
      break;
    default: {
      const size_t width = size_t{1} << below(4, random);
      if (out.size() < width) break;
      const auto value =
          static_cast<int64_t>(std::strtoll(interesting_number(random).c_str(), nullptr, 10));
      size_t place = below(out.size() - width + 1, random);
      if (!one_in(4, random)) place -= place % width;
      std::memcpy(out.data() + place, &value, width);
    }
  }
  return out;
}

std::string mutate_safetensors(std::string_view bytes, Random& random, const std::string& good) {
  uint64_t length = 0;
  const std::string from(bytes.size() < sizeof length ? good : bytes);
  const auto header_bytes = [](std::string_view file) {
    uint64_t n = 0;
    std::memcpy(&n, file.data(), sizeof n);
    return std::min<uint64_t>(n, file.size() - sizeof n);
  };
  const size_t header = header_bytes(from), content = sizeof length + header;
  const std::string head = from.substr(0, content), tail = from.substr(content);
  if (random() % 8 == 0) return mutate_bytes(head, random) + tail;
  if (random() % 8 == 0) return head + mutate_bytes(tail, random);
  const std::string sample = good.substr(sizeof length, header_bytes(good));
  const std::string text = mutate_json(from.substr(sizeof length, header), random, sample);
  length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + tail;
}

void repair_checksum(std::string& bytes) {
  uint64_t hash = 0;
  if (bytes.size() < sizeof hash) return;
  hash = fnv1a(kFnvStart, bytes.data(), bytes.size() - sizeof hash);
  std::memcpy(bytes.data() + bytes.size() - sizeof hash, &hash, sizeof hash);
}

size_t mutated(uint8_t* data, size_t size, size_t max_size, unsigned seed, const Mutation& mutate) {
  Random random(seed);
  std::string out;
  if (!one_in(64, random)) {
    out = mutate({reinterpret_cast<const char*>(data), size}, random);
  }
  if (size <= 1) {  // without a corpus libFuzzer begins with one byte, and so with the sample
    static int too_long = 0;  // mutated samples, one after the other
    too_long = out.size() > max_size ? too_long + 1 : 0;
    if (too_long == 100) {
      std::fprintf(stderr, "FINDING: a mutated sample has %zu bytes, -max_len allows %zu\n",
                   out.size(), max_size);
      std::abort();
    }
  }
  if (out.empty() || out.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, out.data(), out.size());
  return out.size();
}

int loaded(const std::function<void()>& load) {
  try {
    load();
  } catch (const UserError&) {
  } catch (const std::exception& e) {
    std::fprintf(stderr, "FINDING: %s: %s\n", typeid(e).name(), e.what());
    std::abort();
  }
  return 0;
}

const std::string& folder() {
  struct Folder {
    std::string path;
    Folder() {
      const bool in_memory = std::filesystem::is_directory("/dev/shm");
      path = in_memory ? "/dev/shm/moe-fuzz-XXXXXX" : "/tmp/moe-fuzz-XXXXXX";
      if (mkdtemp(path.data()) == nullptr) std::abort();
    }
    ~Folder() { std::filesystem::remove_all(path); }
  };
  static const Folder folder;
  return folder.path;
}

void write(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace moe::fuzz
