// Parts along the rows in use: which rows of a block each part has.
#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "engine/base/errors.h"
#include "engine/ops/row_cut.h"
#include "engine/routing/workload.h"

namespace moe::test {
namespace {

using ops::Rows;

ops::RowCut cut(const std::string& text) {
  Op op;
  op.name = "a2a";
  op.rows.cut = text;
  return ops::RowCut(op);
}

std::string part(int64_t p, int64_t r) {
  return std::to_string(p) + "/" + std::to_string(r);
}

TEST_CASE("parts cover the rows in use in order, each row once, and differ by at most one row") {
  for (int64_t r = 1; r <= 5; ++r) {
    for (int64_t n = 0; n <= 12; ++n) {
      for (int64_t place = 0; place < 7; ++place) {
        CAPTURE(r, n, place);
        int64_t next = 3;
        for (int64_t p = 0; p < r; ++p) {
          const Rows rows = cut(part(p, r)).of({3, 3 + n}, place);
          CHECK(rows.begin == next);
          CHECK((rows.count() == n / r || rows.count() == (n + r - 1) / r));
          next = rows.end;
        }
        CHECK(next == 3 + n);
      }
    }
  }
}

TEST_CASE("a part of a part has the rows of the inner cut among those of the outer") {
  const Rows outer = cut("1/2").of({0, 20}, 4), inner = cut("1/2 2/3").of({0, 20}, 4);
  const Rows again = cut("2/3").of(outer, 4);
  CHECK(inner.begin == again.begin);
  CHECK(inner.end == again.end);
  CHECK(cut("1/2 2/3").share() == Approx(1.0 / 6));
}

TEST_CASE("single rows of many experts and sources spread over the parts") {
  for (const int64_t r : {2, 4}) {
    std::vector<int64_t> rows(static_cast<size_t>(r));
    for (int64_t place = 0; place < 64; ++place) {
      for (int64_t p = 0; p < r; ++p) {
        rows[static_cast<size_t>(p)] += cut(part(p, r)).of({0, 1}, place).count();
      }
    }
    CHECK(rows == std::vector<int64_t>(static_cast<size_t>(r), 64 / r));
  }
}

TEST_CASE("under skew the largest part of a device's rows is near its share") {
  const RoutingModel model = workload("zipf", {{"s", 1.2}}, 3);
  const ExpertCounts loads = model.loads({.ranks = 16, .tokens = 1024, .experts = 16, .k = 1});
  for (const int64_t r : {2, 4, 8}) {
    std::vector<double> shares;  // of the largest part, by device
    for (int64_t e = 0; e < 16; ++e) {
      int64_t most = 0, all = 0;
      for (int64_t p = 0; p < r; ++p) {
        int64_t here = 0;
        for (int64_t s = 0; s < 16; ++s)
          here += cut(part(p, r)).of({0, loads.at(s, e)}, e + s).count();
        most = std::max(most, here);
        all += here;
      }
      shares.push_back(static_cast<double>(most) / static_cast<double>(all));
    }
    std::sort(shares.begin(), shares.end());
    CHECK(shares[8] <= 1.5 / static_cast<double>(r));
  }
}

TEST_CASE("a cut that is no list of parts is refused") {
  for (const char* const text : {"2", "2/2", "-1/2", "0/2,", "0/2 ", "a/b"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(cut(text), Catch::Contains("attribute 'cut' is '") &&
                                     Catch::Contains("such as '0/2' or '0/2 1/3'"));
  }
}

}  // namespace
}  // namespace moe::test
