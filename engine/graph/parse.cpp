#include "engine/graph/text.h"

#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

/// Reads one line from left to right.
class LineReader {
 public:
  LineReader(std::string_view line, size_t number) : line_(line), number_(number) {}

  [[noreturn]] void fail(std::string_view expected) const {
    throw user_error("graph text, line {}, column {}: '{}': expected {}", number_, at_ + 1, line_,
                     expected);
  }
  bool at_end() {
    skip_spaces();
    return at_ == line_.size();
  }
  bool take(char c) {
    skip_spaces();
    if (at_ == line_.size() || line_[at_] != c) return false;
    ++at_;
    return true;
  }
  void demand(char c) {
    if (!take(c)) fail(fmt::format("'{}'", c));
  }
  /// Reads and returns the next word (characters that are neither space nor punctuation). Throws
  /// UserError "expected <what>" if there is none.
  std::string word(std::string_view what) {
    skip_spaces();
    const size_t end = std::min(line_.find_first_of(" \t,=(){}[]", at_), line_.size());
    if (end == at_) fail(what);
    const std::string text(line_.substr(at_, end - at_));
    at_ = end;
    return text;
  }
  std::optional<std::string> peek_word() {
    skip_spaces();
    if (at_ == line_.size() || std::string_view(",=(){}[]").find(line_[at_]) != line_.npos) {
      return std::nullopt;
    }
    const size_t start = at_;
    std::string text = word("a word");
    at_ = start;
    return text;
  }
  int64_t integer(std::string_view what) {
    skip_spaces();
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(line_.data() + at_, line_.data() + line_.size(), value);
    if (error != std::errc()) fail(what);
    at_ = static_cast<size_t>(end - line_.data());
    return value;
  }
  int64_t label() {
    if (!take('%')) fail("a tensor such as %7");
    return integer("the number of a tensor");
  }
  Shape shape() {
    Shape shape;
    demand('[');
    if (take(']')) return shape;
    do {
      shape.push_back(integer("a length"));
    } while (take(','));
    demand(']');
    return shape;
  }
  AttrValue value() {
    if (take('"')) return quoted();
    const std::string text = word("a number or a quoted string");
    const char* end = text.data() + text.size();
    int64_t number = 0;
    if (const auto r = std::from_chars(text.data(), end, number); r.ptr == end) return number;
    double real = 0;
    if (const auto r = std::from_chars(text.data(), end, real); r.ptr == end) return real;
    fail("a number or a quoted string");
  }

 private:
  void skip_spaces() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t')) ++at_;
  }
  std::string quoted() {
    std::string text;
    while (at_ < line_.size() && line_[at_] != '"') {
      if (line_[at_] == '\\') ++at_;
      if (at_ < line_.size()) text += line_[at_++];
    }
    if (at_ == line_.size()) fail("a closing quote");
    ++at_;
    return text;
  }

  std::string_view line_;
  size_t number_;
  size_t at_ = 0;
};

/// Builds the graph line by line, then numbers its tensors in the order of their labels.
class GraphParser {
 public:
  explicit GraphParser(const OpTable& table) : table_(table), by_line_(table) {}

  Graph parse(std::string_view text) {
    size_t number = 0;
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      ++number;
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      LineReader reader(line, number);
      if (reader.at_end() || line[line.find_first_not_of(" \t")] == '#') continue;
      parse_line(reader);
    }
    return finish();
  }

 private:
  struct Output {
    int64_t label;
    Held held;
    std::optional<TensorKind> kind;
    std::optional<std::string> name;
  };

  void parse_line(LineReader& in) {
    if (!seen_header_) return parse_header(in);
    std::vector<Output> outputs;
    if (in.peek_word().value_or("").starts_with('%')) {
      outputs.push_back({.label = in.label()});
      if (const auto kind = find_named<TensorKind>(in.peek_word().value_or(""))) {
        in.word("a kind");
        const auto dtype = find_named<DType>(in.peek_word().value_or(""));
        if (dtype) return parse_tensor(in, outputs[0].label, *kind, *dtype);
        outputs[0].kind = kind;
      }
      parse_output_flags(in, outputs[0]);
      while (in.take(',')) {
        outputs.push_back({.label = in.label()});
        parse_output_flags(in, outputs.back());
      }
      in.demand('=');
    }
    parse_op(in, outputs);
  }

  void parse_header(LineReader& in) {
    if (in.word("'graph'") != "graph") in.fail("'graph NAME ranks=N' as the first line");
    if (in.peek_word() != "ranks") by_line_.name = in.word("a name");
    if (in.word("'ranks'") != "ranks") in.fail("'ranks=N'");
    in.demand('=');
    by_line_.num_ranks = in.integer("the number of ranks");
    if (by_line_.num_ranks < 1) in.fail("at least one rank");
    expect_end(in);
    seen_header_ = true;
  }

  void parse_tensor(LineReader& in, int64_t label, TensorKind kind, DType dtype) {
    in.word("a dtype");
    Tensor tensor{.dtype = dtype, .kind = kind};
    tensor.shape = in.shape();
    tensor.name = in.word("the tensor's name");
    while (take_held(in, tensor.held)) {
    }
    expect_end(in);
    define(in, label, std::move(tensor));
  }

  /// Reads a flag of `held`, if one is next.
  static bool take_held(LineReader& in, Held& held) {
    const std::string word(in.peek_word().value_or(""));
    if (word == "expert") {
      in.word("'expert'");
      return held.moe = true;
    }
    constexpr int64_t kMost = std::numeric_limits<int8_t>::max();
    for (const auto& [name, member, least] : {std::tuple("split_axis", &Held::split, 0),
                                              {"blocks", &Held::blocks, 1},
                                              {"same", &Held::same, 1}}) {
      if (word != name) continue;
      in.word(name);
      in.demand('=');
      const int64_t value = in.integer("a number");
      if (value < least || value > kMost) in.fail(fmt::format("{} to {}", least, kMost));
      held.*member = static_cast<int8_t>(value);
      return true;
    }
    return false;
  }

  void parse_output_flags(LineReader& in, Output& output) {
    while (const auto word = in.peek_word()) {
      if (take_held(in, output.held)) continue;
      in.word("a flag");
      if (*word == "as") {
        output.name = in.word("the tensor's name");
      } else if (const auto kind = find_named<TensorKind>(*word)) {
        output.kind = kind;
      } else {
        in.fail("'expert', 'split_axis', 'blocks', 'same', a tensor kind, 'as NAME', ',' or '='");
      }
    }
  }

  void parse_op(LineReader& in, const std::vector<Output>& outputs) {
    Op op;
    op.kind = parse_kind(in);
    in.demand('(');
    if (!in.take(')')) {
      do {
        op.inputs.push_back(parse_input(in));
      } while (in.take(','));
      in.demand(')');
    }
    if (in.take('{')) {
      do {
        const std::string key = in.word("an attribute");
        in.demand('=');
        op.attrs[key] = in.value();
      } while (in.take(','));
      in.demand('}');
    }
    op.name = in.word("the op's name");
    try {
      op.rows = take_row_use(op.attrs, op.name);
    } catch (const UserError& error) {
      in.fail(fmt::format("attributes that fit: {}", error.what()));
    }
    parse_op_flags(in, op);
    std::vector<TensorSpec> specs = infer(in, op);
    if (specs.size() != outputs.size()) {
      in.fail(fmt::format("{} outputs of {}", specs.size(), table_.def(op.kind).name));
    }
    for (size_t i = 0; i < specs.size(); ++i) {
      Tensor tensor{.name = outputs[i].name.value_or(output_name(op.name, i)),
                    .shape = std::move(specs[i].shape),
                    .dtype = specs[i].dtype,
                    .kind = outputs[i].kind.value_or(usual_tensor_kind(op.phase)),
                    .held = outputs[i].held,
                    .stored_rows = specs[i].stored_rows};
      op.outputs.push_back(define(in, outputs[i].label, std::move(tensor)));
    }
    by_line_.append(std::move(op));
  }

  OpKind parse_kind(LineReader& in) {
    const std::string name = in.word("the kind of an op");
    try {
      return table_.kind(name);
    } catch (const UserError& error) {
      in.fail(fmt::format("the kind of an op: {}", error.what()));
    }
  }

  std::vector<TensorSpec> infer(const LineReader& in, const Op& op) {
    try {
      check_inputs(by_line_, op);
      return table_.def(op.kind).infer(by_line_, op);
    } catch (const UserError& error) {
      in.fail(fmt::format("inputs that fit: {}", error.what()));
    }
  }

  void parse_op_flags(LineReader& in, Op& op) {
    constexpr const char* kFlags = "'layer=N', 'part=N', 'micro=N', 'pp=N', 'dw' or 'of=%N'";
    const auto phase = find_named<Phase>(in.word("a phase"));
    if (!phase) in.fail("a phase: forward, recompute, backward, update");
    op.phase = *phase;
    const auto segment = find_named<Segment>(in.word("a segment"));
    if (!segment) {
      in.fail("a segment: embed attn gate dispatch expert combine mlp head update handoff");
    }
    op.segment = *segment;
    while (!in.at_end()) {
      const std::string flag = in.word(kFlags);
      if (flag == "dw") {
        op.is_dw = true;
      } else if (flag == "of") {
        in.demand('=');
        op.of = parse_input(in);
      } else if (flag == "layer" || flag == "part" || flag == "micro" || flag == "pp") {
        in.demand('=');
        (flag == "layer"   ? op.layer
         : flag == "part"  ? op.part
         : flag == "micro" ? op.micro
                           : op.pipeline_rank) = static_cast<int32_t>(in.integer("a number"));
      } else {
        in.fail(kFlags);
      }
    }
  }

  TensorId parse_input(LineReader& in) {
    if (in.peek_word() == "_") {
      in.word("'_'");
      return {};
    }
    const auto found = by_label_.find(in.label());
    if (found == by_label_.end()) in.fail("a tensor that an earlier line defines");
    return found->second;
  }

  TensorId define(LineReader& in, int64_t label, Tensor tensor) {
    const TensorId id = by_line_.add_tensor(std::move(tensor));
    if (!by_label_.emplace(label, id).second) in.fail("a tensor number that is not taken");
    return id;
  }

  void expect_end(LineReader& in) {
    if (!in.at_end()) in.fail("the end of the line");
  }

  Graph finish() {
    Graph result(table_);
    result.name = by_line_.name;
    result.num_ranks = by_line_.num_ranks;
    std::vector<TensorId> renamed(by_line_.tensors().size());
    for (const auto& [label, id] : by_label_) {
      renamed[id.index()] = result.add_tensor(by_line_.tensor(id));
    }
    for (Op op : by_line_.ops()) {
      for (TensorId& t : op.inputs) {
        if (t.valid()) t = renamed[t.index()];
      }
      for (TensorId& t : op.outputs) t = renamed[t.index()];
      if (op.of.valid()) op.of = renamed[op.of.index()];
      result.append(std::move(op));
    }
    return result;
  }

  const OpTable& table_;
  Graph by_line_;
  std::map<int64_t, TensorId> by_label_;
  bool seen_header_ = false;
};

}  // namespace

Graph parse_graph(std::string_view text, const OpTable& table) {
  return GraphParser(table).parse(text);
}

}  // namespace moe
