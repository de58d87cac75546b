// Architectures in Lua: blocks and ops, the same graphs as the library's, and what is refused.
#include <catch2/catch.hpp>

#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

/// A model of blocks, whose first block has ops of its own in the place of a block.
const std::string kSmallModel = R"(
local moe = require "moe"
local cluster = moe.cluster.p4de { nodes = 1 }
local sizes = { vocab = 256, seq = 32, batch_per_device = 2, experts_per_device = 1 }
local function plan(model)
  return moe.plan { model = model, cluster = cluster, system = moe.system "raf" {} }
end
local function define(build, params)
  params = params or { layers = 2, hidden = 64, heads = 4 }
  return moe.model.define { name = "mine", params = params, build = build }
end
)";

void good_model(const std::string& text) {
  CHECK(message_of(kSmallModel + text) == "(no error)");
}

std::string bad_model(const std::string& text) {
  return message_of(kSmallModel + text);
}

/// Refused in `line` of a build that has an embedding before it and a head after it.
std::string bad_line(const std::string& line) {
  return bad_model("plan(define(function(b, o)\n  local x = b:embedding { hidden = o.hidden }\n" +
                   line + "\n  b:head(x)\nend)(sizes))");
}

}  // namespace

TEST_CASE("a model of blocks has the plan of the built-in one") {
  good_model(R"(
    local mine = define(function(b, o)
      assert(o.experts == 8 and o.batch_per_device == 2 and o.k == 1 and o.hidden == 64)
      assert(#b.ids.shape == 2 and b.ids.shape[2] == o.seq and b.targets.name == "targets")
      local x = b:embedding { hidden = o.hidden }
      for i = 1, o.layers do
        b:block(i)
        local u = b:layernorm(x, { name = "ln1", seg = "attn" })
        x = b:attention(u, { heads = o.heads, residual = x })
        u = b:layernorm(x, { name = "ln2", seg = i == 2 and "gate" or "mlp" })
        local ffn = { ffn = 4 * o.hidden, residual = x }
        x = i == 2 and b:experts(u, ffn) or b:feed_forward(u, ffn)
      end
      b:block()
      b:head(b:layernorm(x, { name = "lnf", seg = "head" }))
    end)
    local given = { name = "same", layers = 2, hidden = 64, heads = 4 }
    for k, v in pairs(sizes) do given[k] = v end
    local a, b = plan(mine(given)), plan(moe.model.gpt2_moe(given))
    assert(a:text() == b:text())
    assert(a:info().hash == b:info().hash)
  )");
}

TEST_CASE("ops in the place of blocks are trained, and their parameters follow the blocks' names") {
  good_model(R"(
    local mine = define(function(b, o)
      local x = b:embedding { hidden = o.hidden, positions = true }
      b:block(1)
      local w = b:parameter { name = "mix.w", shape = { o.hidden, o.hidden } }
      assert(w.name == "b0.mix.w" and w.shape[1] == o.hidden)
      local u = b:op { kind = "gelu", name = "mix.act", inputs = { x }, seg = "mlp" }
      x = b:op { kind = "linear", name = "mix.out", inputs = { u, w, false, x } }
      u = b:layernorm(x, { name = "ln", seg = "gate" })
      x = b:experts(u, { ffn = 2 * o.hidden, residual = x })
      b:block()
      b:head(x, { tied = false })
    end)
    local m = mine { vocab = 64, seq = 16, batch = 4, experts = 4, hidden = 32 }
    local r = moe.train { model = m,
      ranks = 2, steps = 4, tokens = "reference" }
    assert(#r.losses == 4 and r.losses[4] ~= r.losses[1])
  )");
}

TEST_CASE("what a build does wrong is named") {
  CHECK_THAT(bad_line("b:block(0)"), Contains("b:block 0 is not allowed"));
  CHECK_THAT(bad_line("b:layernorm(x)"), Contains("b:layernorm.name: is missing"));
  CHECK_THAT(bad_line("b:layernorm(x, { name = 'a', residual = x })"),
             Contains("b:layernorm: unknown key 'residual'"));
  CHECK_THAT(bad_line("b:layernorm({}, { name = 'a' })"), Contains("tensor"));
  CHECK_THAT(bad_line("b:attention(x, { heads = 5 })"), Contains("5 does not divide"));
  CHECK_THAT(bad_line("b:attention(x, { heads = 0 })"), Contains("b:attention.heads = 0"));
  CHECK_THAT(bad_line("b:feed_forward(x, { ffn = 8, form = 'relu' })"), Contains("'relu'"));
  CHECK_THAT(bad_line("b:parameter { name = 'w', shape = {} }"), Contains("shape []"));
  CHECK_THAT(bad_line("b:parameter { name = 'w', shape = { 4 }, init = 'half' }"),
             Contains("'half'"));
  CHECK_THAT(bad_line("b:parameter { name = 'w', shape = { 4 } }"),
             Contains("model 'mine': no op reads the parameter 'w'"));
  CHECK_THAT(bad_line("b:parameter { name = 'wte', shape = { 4 } }"),
             Contains("'wte' is declared twice"));
  CHECK_THAT(bad_line("b:parameter { name = 'w', shape = { 3, 4 }, experts = true }"),
             Contains("its first axis must be the 8 experts"));
  CHECK_THAT(bad_line("b:op { kind = 'lineer', name = 'a', inputs = { x } }"),
             Contains("Did you mean 'linear'?"));
  CHECK_THAT(bad_line("b:experts(x, { ffn = 8 })"), Contains("a gate must be in a block"));
  CHECK_THAT(bad_line("b:feed_forward(x, { ffn = 8.9 })"),
             Contains("b:feed_forward.ffn: give a whole number"));
  CHECK_THAT(bad_line("b:attention(x, { heads = 1e308 })"),
             Contains("b:attention.heads: give a whole number"));
  CHECK_THAT(bad_model("plan(define(function(b, o) b:head(b.ids) end)(sizes))"),
             Contains("no block has declared the parameter 'wte'"));
  CHECK_THAT(bad_model("plan(define(function(b, o) b:embedding { hidden = 8 } end)(sizes))"),
             Contains("has no cross_entropy op"));
  CHECK_THAT(bad_model("plan(define(function(b, o) error 'oops' end)(sizes))"),
             Contains("oops (in model 'mine')"));
}

TEST_CASE("what a definition does wrong is named") {
  CHECK_THAT(bad_model("moe.model.define { name = 'a' }"),
             Contains("moe.model.define.build: is missing"));
  CHECK_THAT(bad_model("define(print, { vocab = 3 })"),
             Contains("every model has a field of this name"));
  CHECK_THAT(bad_model("define(print, { f = print })"), Contains("moe.model.define.params.f"));
  CHECK_THAT(bad_model("define(print)\ndefine(print)"), Contains("'mine' is defined twice"));
  CHECK_THAT(bad_model("define(print)({ hiden = 8 })"), Contains("Did you mean 'hidden'?"));
}

TEST_CASE("a builder cannot be used after the model is built") {
  CHECK_THAT(bad_model("local kept\nplan(define(function(b, o)\n  kept = b\n"
                       "  b:head(b:embedding { hidden = 8 })\nend)(sizes))\nlocal x = kept.ids"),
             Contains("has ended"));
}
