// The pass pipemoe: cuts every MoE layer along the capacity, each layer at its own degree.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "engine/base/errors.h"
#include "engine/passes/capacity/pipemoe_fit.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// A layer's degree, the reason for it, and the two lines (pipemoe_fit.h) in words, for the log.
struct Chosen {
  int64_t degree = 1;
  std::string why, lines;
};

/// Parses a list of degrees such as "1,2,4,8". Throws UserError naming the option.
std::vector<int64_t> parse_degrees(const std::string& text, const std::string& stage) {
  std::vector<int64_t> degrees;
  const char *at = text.data(), *end = text.data() + text.size();
  while (true) {
    int64_t degree = 0;
    const auto [next, error] = std::from_chars(at, end, degree);
    if (error != std::errc() || (next != end && *next != ',')) {
      throw user_error("{}.degrees = '{}': a list of degrees such as '1,2,4,8' is allowed", stage,
                       text);
    }
    degrees.push_back(degree);
    if (next == end) return degrees;
    at = next + 1;
  }
}

std::string error_text(const FitError& error) {
  return fmt::format("fitted, error {:.1f}% median, {:.1f}% worst", 100 * error.median,
                     100 * error.worst);
}

/// The state of one call of the pass.
class PipeMoe {
 public:
  PipeMoe(const Graph& graph, const PassContext& context)
      : graph_(graph),
        context_(context),
        objective_(text("objective") == "step" ? DegreeObjective::kStep
                                               : DegreeObjective::kForward) {
    read_lines();
    problem_.max_degree = static_cast<int64_t>(number("max_degree"));
    if (number("max_degree") != std::floor(number("max_degree"))) {
      throw user_error("{}.max_degree = {}: a whole number is allowed", context.stage,
                       number("max_degree"));
    }
    if (!text("degrees").empty()) problem_.allowed = parse_degrees(text("degrees"), context.stage);
    problem_.ways = {{}};
    check(problem_, context.stage);
  }

  Chosen choose(const CapacityChain& chain) {
    std::string key;
    for (const OpId op : chain.ops) key += op_signature(graph_, op) + "\n";
    const auto known = chosen_.find(key);
    if (known != chosen_.end()) return known->second;
    return chosen_[key] = best_of(chain);
  }

 private:
  double number(const char* name) const { return std::get<double>(context_.options.at(name)); }
  const std::string& text(const char* name) const {
    return std::get<std::string>(context_.options.at(name));
  }

  /// Reads the four numbers of the two lines; throws UserError unless all or none are given.
  void read_lines() {
    constexpr double kFitted = -1;
    const char* missing = nullptr;
    const std::pair<const char*, double*> fields[] = {{"alpha_a", &given_.alpha_a},
                                                      {"beta_a", &given_.beta_a},
                                                      {"alpha_e", &given_.alpha_e},
                                                      {"beta_e", &given_.beta_e}};
    for (const auto& [name, field] : fields) {
      *field = number(name);
      if (*field == kFitted) missing = name;
      if (*field != kFitted) has_lines_ = true;
    }
    if (!has_lines_) return;
    if (missing != nullptr) {
      throw user_error(
          "{}.{} is missing: give all of alpha_a, beta_a, alpha_e and beta_e, or none of them",
          context_.stage, missing);
    }
    check(given_, context_.stage);
  }

  Chosen best_of(const CapacityChain& chain) const {
    DegreeProblem problem = problem_;
    problem.max_degree = std::min(problem.max_degree, chain.capacity);
    const std::string& name = graph_.op(chain.ops[0]).name;
    if (problem.allowed && problem.allowed->back() > chain.capacity) {
      throw user_error(
          "{}.degrees contains {}, but op '{}' has a capacity of {}, so 1 to {} is allowed",
          context_.stage, problem.allowed->back(), name, chain.capacity, chain.capacity);
    }
    if (problem.max_degree == 1) return {1, "degree 1, the only one that is allowed", ""};
    LayerFit fit{.model = work_of(graph_, chain)};
    if (!has_lines_) {
      fit = fit_layer(graph_, chain, context_.cost, objective_, problem.max_degree);
    } else {
      fit.model.alpha_a = given_.alpha_a, fit.model.beta_a = given_.beta_a;
      fit.model.alpha_e = given_.alpha_e, fit.model.beta_e = given_.beta_e;
    }
    problem.ways = times_of(fit.model, objective_);
    problem.cut_s = fit.model.cut_s;
    const DegreeChoice choice = choose_degree(problem, text("method"), context_.stage);
    return {
        choice.degree,
        fmt::format("degree {}: the layer's {} predicted {:.3f} ms, uncut {:.3f} ms", choice.degree,
                    text("objective"), 1e3 * choice.time_s, 1e3 * time_of(problem, 1)),
        lines_text(fit)};
  }

  std::string lines_text(const LayerFit& fit) const {
    const auto line = [this](const char* what, double alpha, double beta, double n,
                             const FitError& error) {
      return fmt::format("{} {:.3g} s + {:.3g} s * {:.4g} ({})", what, alpha, beta, n,
                         has_lines_ ? "given" : error_text(error));
    };
    const LayerModel& m = fit.model;
    std::string all = line("transfer", m.alpha_a, m.beta_a, m.n_d, fit.transfer) + "; " +
                      line("experts", m.alpha_e, m.beta_e, m.n_e, fit.experts);
    if (fit.backward) {
      all += "; " + line("their backward", *m.alpha_b, *m.beta_b, m.n_e, *fit.backward);
    }
    return all + fmt::format("; cutting {:.3g} s", m.cut_s);
  }

  const Graph& graph_;
  const PassContext& context_;
  const DegreeObjective objective_;
  LayerModel given_;  // set only when has_lines_
  bool has_lines_ = false;
  DegreeProblem problem_;
  // Indexed by the signature of the layer's ops, so equal layers are fitted only once.
  std::map<std::string, Chosen> chosen_;
};

}  // namespace

/// PipeMoE (INFOCOM 2023): like capacity_pipeline, but cuts each MoE layer at the degree that is
/// best according to the layer's two straight lines (pipemoe_degree.h). The lines are given by
/// options or fitted from the cost model (pipemoe_fit.h). Throws UserError naming the option when
/// only some numbers of the lines are given, when a number is negative, and when a degree is not a
/// whole number of at least 1 or is above the capacity of a layer.
Graph pipemoe(Graph graph, const PassContext& context) {
  const std::vector<CapacityChain> chains = capacity_chains(graph, context.stage);
  std::vector<Chosen> chosen;
  PipeMoe pass(graph, context);
  for (const CapacityChain& chain : chains) chosen.push_back(pass.choose(chain));
  for (size_t i = 0; i < chains.size(); ++i) {
    const std::string name = graph.op(chains[i].ops[0]).name;
    std::string why = chosen[i].why;
    if (chosen[i].degree > 1) {
      const std::vector<int64_t> sizes = cut_capacity(graph, chains[i], chosen[i].degree);
      why += ", " + cut_text(chains[i], sizes, "in");
    }
    context.log->push_back({name, context.stage, std::move(why)});
    if (!chosen[i].lines.empty()) context.log->push_back({name, context.stage, chosen[i].lines});
  }
  const auto cut = [](const Chosen& c) { return c.degree > 1; };
  if (!chosen.empty() && std::none_of(chosen.begin(), chosen.end(), cut)) {
    context.skip("no MoE layer is cut; " + chosen[0].why);
  }
  return graph;
}

}  // namespace moe
