#include "engine/ops/row_cut.h"

#include <charconv>
#include <limits>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"

namespace moe::ops {

RowCut::RowCut(const Op& op) {
  const std::string& text = op.rows.cut;
  if (text.empty()) return;
  const char *at = text.data(), *const end = at + text.size();
  while (true) {
    Part part{};
    const auto slash = std::from_chars(at, end, part.number);
    const bool has_slash = slash.ec == std::errc() && slash.ptr != end && *slash.ptr == '/';
    const auto rest = std::from_chars(has_slash ? slash.ptr + 1 : end, end, part.of);
    if (rest.ec != std::errc() || part.number < 0 || part.number >= part.of ||
        (rest.ptr != end && *rest.ptr != ' ')) {
      throw user_error(
          "op '{}': attribute 'cut' is '{}', allowed: parts such as '0/2' or '0/2 1/3'", op.name,
          text);
    }
    parts_.push_back(part);
    if (rest.ptr == end) return;
    at = rest.ptr + 1;
  }
}

double RowCut::share() const {
  double share = 1;
  for (const Part& part : parts_) share /= static_cast<double>(part.of);
  return share;
}

Rows RowCut::of(Rows rows, int64_t slot_and_source) const {
  for (const auto& [p, r] : parts_) {
    const int64_t n = rows.count(), o = slot_and_source % r;
    rows = {rows.begin + (n * p + o) / r, rows.begin + (n * (p + 1) + o) / r};
  }
  return rows;
}

bool is_row_part(const Graph& graph, const Op& op) {
  // All-to-alls of padded slots have attrs rounds, too.
  return op.rows.is_cut() && (graph.def(op).payload != Payload::kRows || op.rows.irregular);
}

TensorId counts_of_rows(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  return def.rows_end != nullptr ? def.rows_end(graph, op, 0)
                                 : input_of(graph, op, Role::kRecvCounts);
}

std::string nested_cut(const Op& op, int64_t part, int64_t parts) {
  const std::string& outer = op.rows.cut;
  return fmt::format("{}{}{}/{}", outer, outer.empty() ? "" : " ", part, parts);
}

RowUse cut_of(const Op& op) {
  if (!op.rows.is_cut()) return {};
  return {.group = op.rows.group, .round = op.rows.round, .cut = op.rows.cut};
}

Attrs row_attrs(const Op& op) {
  RowUse rows = cut_of(op);
  rows.loose = op.rows.loose;
  rows.occupancy = op.rows.occupancy;
  Attrs attrs = attrs_of(rows);
  if (op.attrs.contains("rows")) attrs["rows"] = op.attrs.at("rows");
  return attrs;
}

ExpertRowCut::ExpertRowCut(const Graph& graph, const Op& op, int64_t rank, int64_t slots)
    : cut_(op), last_source_(std::numeric_limits<int64_t>::max()) {
  if (!op.rows.is_cut()) return;
  const Group group = group_of(graph, op);
  const Round round = round_of(graph, op);
  first_slot_ = group.place(rank) * slots;
  if (round.of == 1) return;
  first_source_ = round.receives_from(group, group.place(rank));
  last_source_ = first_source_ + round.members(group);
}

Rows ExpertRowCut::of(Rows rows, int64_t slot, int64_t source) const {
  if (source < first_source_ || source >= last_source_) return {};
  return cut_.of(rows, first_slot_ + slot + source);
}

}  // namespace moe::ops
