// Which kernels run attention of bfloat16: a library's or our own. The emulated library counts what
// it is given.
#include <cudnn.h>

#include <algorithm>
#include <map>

#include "kernels/cuda/attention/attention_library.h"
#include "tests/cuda/attention_bf16.h"
#include "tests/cuda/emulation/emulated.h"

using namespace moe;
using namespace moe::test;
using kernels::cuda::library_has_attention;

namespace {

/// Plans are kept by shape, so each case has a shape of its own.
struct Library {
  explicit Library(emulation::CudnnKnobs knobs = {}) {
    emulation::cudnn_knobs = knobs;
    emulation::cudnn_calls = {};
  }
  ~Library() { emulation::cudnn_knobs = {}; }
  static int executions() {
    int all = 0;
    for (const auto& [engine, count] : emulation::cudnn_calls.executions) all += count;
    return all;
  }
};

}  // namespace

TEST_CASE("attention of bfloat16 runs by the library where it has it, unless ours are asked for") {
  const Library library;
  AttentionShape s = {1, 20, 2, 16};
  CHECK(library_has_attention(s));
  const Inputs in(s, 1);
  run(s, in);
  CHECK(library.executions() == 2);
  s.own = true;
  const Mixed own = run(s, in);
  CHECK(library.executions() == 2);
  CHECK(emulation::cudnn_calls.plans == std::map<int64_t, int>{{0, 2}});
  CHECK(emulation::cudnn_calls.bad_params == std::vector<std::string>());
  begin_run(0);
  CHECK(same_bits(run(s, in), own));
}

TEST_CASE("a plan of attention is made once per shape and direction, before it runs") {
  const Library library;
  const AttentionShape s = {1, 21, 2, 16};
  const Inputs in(s, 1);
  std::vector<Bf16> ctx(static_cast<size_t>(values(s)));
  std::vector<float> lse(42);
  std::vector<char> work(1 << 16);
  // Nobody has asked for the bytes of work, so it may be that the stream is recorded.
  device_mixed().attention(ctx.data(), lse.data(), in_qkv(in.qkv.data(), s), s, work.data(),
                           nullptr);
  CHECK(library.executions() == 0);
  CHECK(emulation::cudnn_calls.plans.empty());
  for (int again = 0; again < 3; ++again) run(s, in);
  CHECK(library.executions() == 6);
  CHECK(emulation::cudnn_calls.plans == std::map<int64_t, int>{{0, 2}});
}

TEST_CASE("of the library's engines the first is taken that gives the same bits and can be made") {
  emulation::CudnnKnobs knobs;
  knobs.engines = 4;
  knobs.nondeterministic = {0, 2};
  knobs.first_supported = 2;
  const Library library(knobs);
  const AttentionShape s = {1, 22, 2, 16};
  CHECK(library_has_attention(s));
  CHECK(emulation::cudnn_calls.plans == std::map<int64_t, int>{{3, 2}});
}

TEST_CASE("where the library has nothing that gives the same bits, our own kernels run") {
  emulation::CudnnKnobs nothing, varying, unmade, old, none;
  nothing.engines = 0;
  varying.nondeterministic = {0, 1, 2};
  unmade.first_supported = 3;
  old.version = 91001;
  none.version = 0;
  int64_t seq = 23;
  for (const auto& knobs : {nothing, varying, unmade, old, none}) {
    const Library library(knobs);
    AttentionShape s = {1, seq++, 2, 16};
    CAPTURE(s.seq);
    CHECK_FALSE(library_has_attention(s));
    const Inputs in(s, 1);
    const Mixed got = run(s, in);
    CHECK(library.executions() == 0);
    s.own = true;
    CHECK(same_bits(run(s, in), got));
    CHECK(device_error() == "");
  }
}

TEST_CASE("operands that lie askew are no matter for the library") {
  const Library library;
  const AttentionShape s = {1, 28, 2, 16};
  const Inputs in(s, 1);
  const Mixed want = run(s, in);
  CHECK(library.executions() == 2);
  std::vector<Bf16> askew(in.qkv.size() + 1);
  std::copy(in.qkv.begin(), in.qkv.end(), askew.begin() + 1);
  Mixed got = want;
  auto work = work_for(device_mixed(), s);
  device_mixed().attention(got.ctx.data(), got.lse.data(), in_qkv(askew.data() + 1, s), s,
                           work.data(), nullptr);
  CHECK(library.executions() == 2);
  CHECK(relative_l2(got.lse, {want.lse.begin(), want.lse.end()}) < kMaxLse);
}

TEST_CASE("the library writes nothing beyond the work that it said, nor beyond its results") {
  emulation::CudnnKnobs knobs;
  knobs.workspace_bytes = 5000;
  const Library library(knobs);
  const AttentionShape s = {2, 29, 1, 24};
  constexpr char kGuard = 0x5a;
  const Inputs in(s, 1);
  const auto bytes = static_cast<size_t>(device_mixed().attention_work_bytes(s));
  CHECK(bytes >= 5000 + 2 * 29 * sizeof(float));
  std::vector<char> work(bytes + 64, kGuard);
  const auto size = static_cast<size_t>(values(s));
  std::vector<Bf16> ctx(size + 8, Bf16{7}), dqkv(3 * size + 8, Bf16{7});
  std::vector<float> lse(2 * 29 + 4, 7);
  device_mixed().attention(ctx.data(), lse.data(), in_qkv(in.qkv.data(), s), s, work.data(),
                           nullptr);
  device_mixed().attention_dx(out_qkv(dqkv.data(), s), in.dctx.data(), ctx.data(),
                              in_qkv(in.qkv.data(), s), lse.data(), s, work.data(), nullptr);
  CHECK(library.executions() == 2);
  CHECK(std::all_of(work.begin() + static_cast<int64_t>(bytes), work.end(),
                    [](char c) { return c == kGuard; }));
  CHECK(ctx[size].bits == 7);
  CHECK(dqkv[3 * size].bits == 7);
  CHECK(lse[2 * 29] == 7);
}

TEST_CASE("where the library does not start on a device, our own kernels run there") {
  emulation::CudnnKnobs knobs;
  knobs.create_fails = true;
  const Library library(knobs);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  AttentionShape s = {1, 31, 2, 16};
  CHECK_FALSE(library_has_attention(s));
  emulation::cudnn_knobs.create_fails = false;
  CHECK_FALSE(library_has_attention(s));
  const Inputs in(s, 1);
  const Mixed got = run(s, in);
  CHECK(library.executions() == 0);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  s.own = true;
  CHECK(same_bits(run(s, in), got));
  CHECK(device_error() == "");
}
