// Files of op times: the format of scripts/import_op_times.py, and a user's CSV.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/files.h"
#include "engine/cost/expert_table.h"
#include "engine/cost/op_table.h"

namespace moe {

using nlohmann::json;

namespace {

constexpr std::string_view kMagic = "moebench op times 1\n";

constexpr size_t kMostOfFile = size_t{256} << 20;  // of the file
constexpr size_t kMostCsvCells = 4'000'000;
/// Above the fp4 peak of any GPU of 2026 (NVIDIA's GB300 data sheet: 1.5e16).
constexpr double kMostFlopsPerS = 5e16;

/// Returns the op of this name. Throws UserError beginning with `place` if there is none.
const MeasuredOp& measured_op(std::string_view name, const std::string& place) {
  std::string names;
  for (const MeasuredOp& op : measured_ops()) {
    if (op.name == name) return op;
    names += names.empty() ? op.name : std::string(", ") + op.name;
  }
  throw user_error("{}: op '{}' is not allowed; give one of: {}", place, name, names);
}

/// Returns header[key], of type T. Throws UserError naming the file and the key.
template <class T>
T field_of(const json& header, const char* key, const std::string& path) {
  const auto found = header.find(key);
  try {
    if (found != header.end()) return found->get<T>();
  } catch (const json::exception&) {
  }
  throw user_error("{}: the header has no valid '{}'", path, key);
}

/// The least rate and weight of a file.
constexpr double kLeast = 1e-9;

/// Returns header[key], a rate or weight. Throws UserError naming the file and the key.
double positive_of(const json& header, const char* key, const std::string& path) {
  const auto value = field_of<double>(header, key, path);
  if (value >= kLeast && value < kMostOfSize) return value;
  throw user_error("{}: '{}' of the header is {}, allowed: from {:g}, below {:g}", path, key, value,
                   kLeast, kMostOfSize);
}

GridAxis axis_of(const json& axis, const std::string& path) {
  return {field_of<std::string>(axis, "name", path),
          field_of<std::vector<double>>(axis, "values", path), positive_of(axis, "weight", path)};
}

PeakRates peak_of(const json& header, const json& table, const std::string& path) {
  PeakRates peak{positive_of(table, "peak_flops_per_s", path),
                 positive_of(header, "peak_memory_bytes_per_s", path),
                 positive_of(table, "element_bytes", path),
                 positive_of(header, "peak_link_bytes_per_s", path)};
  if (table.contains("node_ranks")) peak.node_ranks = positive_of(table, "node_ranks", path);
  return peak;
}

GridSource source_of(const json& table, const std::string& path) {
  const auto text = [&](const char* key) { return field_of<std::string>(table, key, path); };
  const bool in_step = table.contains("in_step") && field_of<bool>(table, "in_step", path);
  const GridSource source{text("kernel"), text("framework"), text("version"),
                          field_of<double>(table, "spread", path), in_step};
  if (source.spread >= 0 && source.spread < kMostOfSize) return source;
  throw user_error("{}: 'spread' of the header is {}, allowed: from 0, below {:g}", path,
                   source.spread, kMostOfSize);
}

std::vector<std::string> fields_of_line(std::string_view line) {
  std::vector<std::string> fields(1);
  for (const char c : line) {
    if (c == ',') {
      fields.emplace_back();
    } else if (c != ' ' && c != '\t' && c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

/// Returns the number of a field of CSV. Throws UserError naming `place` unless it is at least
/// `least`.
double number_of(const std::string& field, double least, const std::string& place) {
  char* end = nullptr;
  const double value = std::strtod(field.c_str(), &end);
  if (field.empty() || *end != '\0' || !(value >= least) || !(value < kMostOfSize)) {
    throw user_error("{} = '{}': give a number of at least {:g} and below {:g}", place, field,
                     least, kMostOfSize);
  }
  return value;
}

/// The measured times of one op, by sizes.
using Rows = std::map<std::vector<double>, std::vector<double>>;

/// The best rates that rows reach: the time by each of them is at most the measured one.
PeakRates best_rates(const MeasuredOp& op, const Rows& rows, double element_bytes) {
  PeakRates best{0, 0, element_bytes, 0};
  for (const auto& [point, ns] : rows) {
    for (double PeakRates::*rate :
         {&PeakRates::flops_per_s, &PeakRates::memory_bytes_per_s, &PeakRates::link_bytes_per_s}) {
      PeakRates unit{1e300, 1e300, element_bytes, 1e300};
      unit.*rate = 1;
      // The time by a rate of 1 is the amount of work.
      best.*rate = std::max(best.*rate, op.peak_s(point, unit) / (ns.front() * 1e-9));
    }
  }
  return best;
}

/// The measured times of all ops and element types.
using AllRows = std::map<std::pair<const MeasuredOp*, std::string>, Rows>;

/// The columns of CSV and the fields of one of its lines.
class CsvRow {
 public:
  CsvRow(const std::vector<std::string>& columns, std::vector<std::string> fields,
         std::string place)
      : columns_(columns), fields_(std::move(fields)), place_(std::move(place)) {
    if (fields_.size() != columns_.size()) {
      throw user_error("{}: {} fields; the first line has {}", place_, fields_.size(),
                       columns_.size());
    }
  }

  bool has(std::string_view name) const { return at(name) != columns_.end(); }
  std::string text(std::string_view name) const {
    return has(name) ? fields_[static_cast<size_t>(at(name) - columns_.begin())] : "";
  }
  double number(std::string_view name, double least) const {
    return number_of(text(name), least, fmt::format("{}: {}", place_, name));
  }

 private:
  std::vector<std::string>::const_iterator at(std::string_view name) const {
    return std::find(columns_.begin(), columns_.end(), name);
  }

  const std::vector<std::string>& columns_;
  std::vector<std::string> fields_;
  std::string place_;
};

/// Adds the measurement of a line, which errors name as `place`.
void add_row(const CsvRow& row, const std::string& place, AllRows& all) {
  const MeasuredOp& op = measured_op(row.text("op"), place);
  std::vector<double> point;
  for (const char* const axis : op.axes) {
    if (!row.has(axis)) {
      throw user_error("{}: op '{}' needs the column '{}', which the first line does not name",
                       place, op.name, axis);
    }
    point.push_back(row.number(axis, 1));
  }
  const std::string dtype = row.text("dtype").empty() ? "bf16" : row.text("dtype");
  if (element_bytes_of(dtype) == 0) {
    throw user_error("{}: dtype = '{}': give bf16, f32, tf32, fp8 or fp8_block", place, dtype);
  }
  const double us = row.number("us", 1e-3);
  if (us > 1e10) throw user_error("{}: us = {}: give 0.001 to 1e10", place, us);
  // With 1 flop per s, and rates so high that bytes take no time, the time in s is the number of
  // flops.
  const double flops_per_s = op.peak_s(point, {1, 1e300, 2, 1e300}) / (us * 1e-6);
  if (std::string_view(op.name) == measured::kGemm && flops_per_s > kMostFlopsPerS) {
    throw user_error(
        "{}: us = {} for this gemm is {:.3g} flops per s, more than any GPU has; is the time in "
        "microseconds?",
        place, us, flops_per_s);
  }
  all[{&op, dtype}][point].push_back(1e3 * us);
}

AllRows rows_of_csv(std::string_view text, const std::string& path) {
  std::vector<std::string> columns;
  AllRows all;
  for (size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line[0] == '#' || line == "\r") continue;
    const std::string place = fmt::format("{}:{}", path, number);
    if (!columns.empty()) {
      add_row(CsvRow(columns, fields_of_line(line), place), place, all);
      continue;
    }
    columns = fields_of_line(line);
    for (const char* const needed : {"op", "us"}) {
      if (std::find(columns.begin(), columns.end(), needed) == columns.end()) {
        throw user_error(
            "{}: the column '{}' is missing; the first line of CSV names the columns op, us "
            "(microseconds) and the sizes of the ops, for example op,m,n,k,us",
            place, needed);
      }
    }
  }
  if (all.empty()) throw user_error("{}: there are no measurements in it", path);
  return all;
}

}  // namespace

OpTables::OpTables(const std::string& path) : file_(read_file(path, Links::kFollow, kMostOfFile)) {
  read(file_, path);
}

void OpTables::read(std::string_view text, const std::string& path) {
  const size_t end = text.find('\0');
  if (!text.starts_with(kMagic)) return read_csv(text, path);
  if (end == std::string_view::npos) throw user_error("{}: the file is cut off", path);
  const std::string_view header_text = text.substr(kMagic.size(), end - kMagic.size());
  check_json_size(header_text, path);
  const json header = json::parse(header_text, nullptr, false);
  if (!header.is_object()) throw user_error("{}: the header is not JSON", path);
  gpu_ = field_of<std::string>(header, "gpu", path);
  const size_t begin = (end + 2) / 2 * 2;  // cells begin at an even offset
  const std::span<const uint16_t> cells(reinterpret_cast<const uint16_t*>(text.data() + begin),
                                        begin < text.size() ? (text.size() - begin) / 2 : 0);
  size_t first = 0;
  for (const json& table : field_of<json::array_t>(header, "tables", path)) {
    const auto name = field_of<std::string>(table, "op", path);
    const PeakRates peak = peak_of(header, table, path);
    const GridSource source = source_of(table, path);
    const auto dtype = field_of<std::string>(table, "dtype", path);
    if (name == measured::kExperts) {
      first += read_experts(table, peak, dtype, source, cells.subspan(first), path);
      continue;
    }
    const MeasuredOp& op = measured_op(name, path);
    std::vector<GridAxis> axes;
    size_t size = 1;
    for (const json& axis : field_of<json::array_t>(table, "axes", path)) {
      axes.push_back(axis_of(axis, path));
      size *= std::min(axes.back().values.size(), cells.size() + 1);
      size = std::min(size, cells.size() + 1);
    }
    if (size > cells.size() - first) throw user_error("{}: the file is cut off", path);
    grids_.push_back(std::make_unique<OpGrid>(path, op, dtype, peak, std::move(axes),
                                              cells.subspan(first, size), source));
    first += size;
  }
}

void OpTables::read_csv(std::string_view text, const std::string& path) {
  gpu_ = path;
  AllRows all = rows_of_csv(text, path);
  for (auto& [key, rows] : all) {
    const auto& [op, dtype] = key;
    std::vector<GridAxis> axes;
    size_t size = 1;
    for (size_t a = 0; a < op->axes.size(); ++a) {
      std::set<double> values;
      for (const auto& [point, ns] : rows) values.insert(point[a]);
      axes.push_back({op->axes[a], {values.begin(), values.end()}, 1});
      size *= values.size();
      if (size > kMostCsvCells) {
        throw user_error(
            "{}: the sizes of '{}' make a grid of more than {} cells; measure fewer different "
            "sizes per axis",
            path, op->name, kMostCsvCells);
      }
    }
    std::vector<uint16_t>& cells = csv_cells_.emplace_back(size, OpGrid::kMissing);
    std::vector<double> off;  // of repeated rows, from their median
    for (auto& [point, ns] : rows) {
      std::sort(ns.begin(), ns.end());
      const double middle = (ns[(ns.size() - 1) / 2] + ns[ns.size() / 2]) / 2;
      for (const double one : ns) {
        if (ns.size() > 1) off.push_back(std::abs(one / middle - 1));
      }
      ns = {middle};
      size_t index = 0;
      for (size_t a = 0; a < axes.size(); ++a) {
        const std::vector<double>& values = axes[a].values;
        index = index * values.size() +
                static_cast<size_t>(std::lower_bound(values.begin(), values.end(), point[a]) -
                                    values.begin());
      }
      cells[index] = OpGrid::cell_of(ns.front());
    }
    std::sort(off.begin(), off.end());
    const double spread = off.empty() ? 0 : off[off.size() * 9 / 10];
    const PeakRates peak = best_rates(*op, rows, element_bytes_of(dtype));
    grids_.push_back(std::make_unique<OpGrid>(path, *op, dtype, peak, std::move(axes), cells,
                                              GridSource{"", "", "", spread}));
  }
}

/// Reads a table of fused expert kernels; returns its number of cells.
size_t OpTables::read_experts(const Header& table, const PeakRates& peak, const std::string& dtype,
                              const GridSource& source, std::span<const uint16_t> cells,
                              const std::string& path) {
  std::vector<ExpertTable::Measured> layers;
  for (const auto& l : field_of<std::vector<std::array<double, 7>>>(table, "layers", path)) {
    layers.push_back({{l[0], l[1], l[2], l[3], l[4], l[5]}, l[6] != 0});
  }
  const auto loads = field_of<std::vector<std::string>>(table, "loads", path);
  const auto tokens = field_of<std::vector<double>>(table, "tokens", path);
  const size_t size = layers.size() * loads.size() * tokens.size();
  if (size > cells.size()) throw user_error("{}: the file is cut off", path);
  experts_.push_back(std::make_unique<ExpertTable>(
      path, dtype, peak, std::move(layers), loads, tokens, cells.first(size),
      field_of<bool>(table, "moves_all", path), source));
  return size;
}

const ExpertTable* OpTables::experts(std::string_view dtype) const {
  for (const auto& table : experts_) {
    if (table->dtype() == dtype) return table.get();
  }
  return nullptr;
}

OpTables::~OpTables() = default;

std::shared_ptr<const OpTables> OpTables::open(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const OpTables>> opened;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const OpTables>& tables = opened[path];
  if (tables == nullptr) tables = std::make_shared<OpTables>(path);
  return tables;
}

const OpGrid* OpTables::find(std::string_view op, std::string_view dtype) const {
  for (const auto& grid : grids_) {
    if (grid->op().name == op && grid->dtype() == dtype) return grid.get();
  }
  return nullptr;
}

}  // namespace moe
