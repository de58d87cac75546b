#include "engine/model/blocks.h"

namespace moe::blocks {
TensorId activated(ModelBuilder& b, const Form& o, const std::string& name, const char* linear,
                   TensorId x, TensorId w1, TensorId b1, const Attrs& attrs) {
  if (o.form == Activation::kGelu) {
    const TensorId u = b.op(linear, name + ".fc1", {x, w1}, attrs);
    return b.op("gelu", name + ".gelu", {u, b1});
  }
  const TensorId u = b.op(linear, name + ".fc1", {x, w1, b1}, attrs);
  Attrs form;
  if (o.limit > 0) form["limit"] = o.limit;
  if (o.alpha != 1) form["alpha"] = o.alpha;
  if (o.offset != 0) form["offset"] = o.offset;
  return b.op("silu_mul", name + ".act", {u}, form);
}

TensorId feed_forward(ModelBuilder& b, const In& in, const FeedForward& o) {
  using Init = ParamInfo::Init;
  const int64_t d = b.width(in.x);
  const std::string ops = o.name.empty() ? "mlp" : o.name;
  const std::string own = o.name.empty() ? "" : o.name + ".";
  const auto bias = [&](const char* name, int64_t n, Held held) {
    return o.form.bias ? b.parameter(own + name, {n}, Init::kZero, held) : TensorId();
  };
  const Held columns = b.split(0, o.form.form == Activation::kSiluMul ? 2 : 1);
  const TensorId w1 = b.parameter(own + "fc1.w", {o.form.fc1_rows(), d}, Init::kUniform, columns);
  const TensorId b1 = bias("fc1.b", o.form.fc1_rows(), columns);
  const TensorId w2 = b.parameter(own + "fc2.w", {d, o.form.ffn}, Init::kUniform, b.split(1));
  const TensorId b2 = bias("fc2.b", d, {});
  b.begin_segment(Segment::kMlp);
  const TensorId x = b.all_rows(ops + ".rows", in.x);
  const TensorId v = activated(b, o.form, ops, "linear", x, w1, b1, {});
  if (!o.gated && o.residual_scale == 1) {
    return b.summed_product(ops + ".fc2", v, w2, b2, in.residual);
  }
  TensorId y = b.summed_product(ops + ".fc2", v, w2, b2, {});
  if (o.gated) {
    const TensorId wg = b.parameter(own + "gate.w", {1, d}, Init::kUniform);
    const TensorId gate =
        b.op("sigmoid", ops + ".gate", {b.op("linear", ops + ".logit", {in.x, wg})});
    y = b.op("mul", ops + ".gated", {y, gate});
  }
  return scaled_sum(b, ops + ".scale", y, o.residual_scale, in.residual);
}

}  // namespace moe::blocks
