#include "engine/cost/nccl_log.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "engine/base/errors.h"
#include "engine/cost/cost_model.h"

namespace moe {
namespace {

using Catch::Contains;

std::string log_text(const std::string& file) {
  std::ifstream in(MOE_SOURCE_DIR "/tests/data/" + file);
  REQUIRE(in);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

NcclLog parse_file(const std::string& file) {
  return parse_nccl_log(log_text(file), file);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

const std::string kHead = R"(# nThread 1 nGpus 2 minBytes 1024 maxBytes 4096 step: 2(factor)
#       size         count      type   redop    root     time   algbw   busbw #wrong     time ...
)";
const std::string kRow1 = " 1024 256 float sum -1 10.5 0.1 0.1 0 10.6 0.1 0.1 0\n";
const std::string kRow2 = " 2048 512 float sum -1 11.5 0.1 0.1 0 11.6 0.1 0.1 0\n";
const std::string kEnd = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.1\n";

NcclLog parse(const std::string& text) {
  return parse_nccl_log(text, "some.log");
}

TEST_CASE("an alltoall log: its ranks, whole send buffers in bytes, out-of-place times in ns") {
  const NcclLog log = parse_file("nccl_alltoall_16.log");
  CHECK(log.collective == Collective::kAllToAll);
  CHECK(log.num_ranks == 16);
  CHECK(log.rows.size() == 22);  // 24 less the two of size 0
  CHECK(log.rows.front() == std::pair<double, double>{64, 45230});
  CHECK(log.rows.back().first == 134217728);
  const InterpolatedTable table(log.rows);
  CHECK(table.at(64) == 45230);
}

TEST_CASE("an all_reduce log: the payload is the tensor") {
  const NcclLog log = parse_file("nccl_all_reduce_16.log");
  CHECK(log.collective == Collective::kAllReduce);
  CHECK(log.num_ranks == 16);
  CHECK(log.rows.size() == 17);
  CHECK(log.rows.front().first == 1024);
  CHECK(log.rows.back().first == 67108864);
}

TEST_CASE("a log without root, redop and validation is read as well") {
  const NcclLog log = parse_file("nccl_alltoall_4_old.log");
  CHECK(log.collective == Collective::kAllToAll);
  CHECK(log.num_ranks == 4);
  CHECK(log.rows.size() == 14);
  CHECK(log.rows.front() == std::pair<double, double>{1024, 20020});
}

TEST_CASE("every time of a log is the first one of its row") {
  const NcclLog log = parse(kHead + kRow1 + kRow2 + kEnd);
  CHECK(log.num_ranks == 2);
  CHECK(log.collective == Collective::kAllReduce);
  CHECK(log.rows == decltype(log.rows){{1024, 10500}, {2048, 11500}});
}

TEST_CASE("the output of mpirun --tag-output and of NCCL_DEBUG is read past") {
  const NcclLog log = parse(kHead + "node0:1:1 [0] NCCL INFO comm 0x1\n[1,0]<stdout>:" + kRow1 +
                            "[1,0]<stdout>:" + kRow2 + "[1,0]<stdout>:" + kEnd + kEnd);
  CHECK(log.rows.size() == 2);
}

TEST_CASE("a program may have a suffix, as builds with MPI give it") {
  const auto of = [](const std::string& program) {
    return parse("# Collective test starting: " + program + "\n" + kHead + kRow1 + kRow2 + kEnd)
        .collective;
  };
  CHECK(of("all_reduce_perf_mpi") == Collective::kAllReduce);
  CHECK(of("alltoall_perf_mpi") == Collective::kAllToAll);
  CHECK(of("alltoall_perf-cuda12") == Collective::kAllToAll);
  CHECK_THROWS_WITH(of("alltoall_perfect"), Contains("it is a log of alltoall_perfect, allowed"));
}

TEST_CASE("ranks of other groups are not counted") {
  std::string ranks;
  for (const char* rank : {"0 Group  0", "1 Group  1", "2 Group  0", "3 Group  0"}) {
    ranks += std::string("#  Rank  ") + rank + " Pid 1 on host device 0\n";
  }
  CHECK(parse(ranks + kHead + kRow1 + kRow2 + kEnd).num_ranks == 3);
}

TEST_CASE("an error column, whose small values are no faults, is not taken for #wrong") {
  const std::string head = replaced(kHead, "#wrong", " error");
  CHECK(parse(head + replaced(kRow1, "0.1 0 ", "0.1 2e-07 ") + kRow2 + kEnd).rows.size() == 2);
  CHECK_THROWS_WITH(parse(kHead + replaced(kRow1, "0.1 0 ", "0.1 3 ") + kRow2 + kEnd),
                    Contains("some.log:3: #wrong is 3 at size 1024"));
}

TEST_CASE("a log that is not one is refused with its file, and its line where there is one") {
  const auto refused = [](const std::string& text, const std::string& why) {
    CHECK_THROWS_AS(parse(text), UserError);
    CHECK_THROWS_WITH(parse(text), Contains("some.log") && Contains(why));
  };
  refused("", "0 rows");
  refused("\x7f\x01garbage\n\n#\n", "0 rows");
  refused(kHead + kRow1 + kEnd, "1 rows");
  refused(kHead + kRow1 + kRow2, "cut off");
  refused(kHead + kRow1 + " 2048 512 float sum -1 11", ":4: the row ends after 6 of 13 columns");
  refused(kHead + kRow1 + " 20\n" + kEnd, ":4: the row ends after 1 of");
  refused(kHead + kRow2 + kRow1 + kEnd, ":4: size 1024 is not above that of the row before, 2048");
  refused(kHead + kRow1 + kRow1 + kEnd, "is not above that of the row before");
  refused(kHead + replaced(kRow1, "10.5", "1O.5") + kRow2 + kEnd, ":3: time is '1O.5'");
  refused(kHead + replaced(kRow1, "10.5", "nan") + kRow2 + kEnd, ":3: time is 'nan'");
  refused(kHead + replaced(kRow1, "10.5", "-1") + kRow2 + kEnd, ":3: time is '-1'");
  refused(kHead + replaced(kRow1, "10.5", "0.00") + kRow2 + kEnd, ":3: time is 0.00");
  refused(kHead + kRow1 + kRow2 + replaced(kEnd, "0 OK", "7 FAILED"), "out of bounds values: 7");
  refused(replaced(kHead, "nThread", "threads") + kRow1 + kRow2 + kEnd,
          "the number of ranks is missing");
  refused(replaced(kHead, "nGpus 2", "nGpus -9223372036854775808") + kRow1 + kRow2 + kEnd,
          ":1: nGpus is '-9223372036854775808', must be 1 to 1000000");
  refused(replaced(kHead, "nThread 1", "nThread 1e3") + kRow1 + kRow2 + kEnd,
          ":1: nThread is '1e3'");
  refused("# Collective test starting: all_gather_perf\n" + kHead + kRow1 + kRow2 + kEnd,
          "all_gather_perf");
}

TEST_CASE("half of a real log is refused, wherever it is cut") {
  const std::string text = log_text("nccl_alltoall_16.log");
  const size_t end = text.find("# Avg");
  for (size_t length = 0; length < end; length += 97) {
    INFO("after " << length << " of " << text.size() << " bytes");
    CHECK_THROWS_AS(parse(text.substr(0, length)), UserError);
  }
}

}  // namespace
}  // namespace moe
