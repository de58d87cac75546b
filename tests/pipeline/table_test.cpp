// Tables as text: reading, printing, and what is found wrong in them. Layouts.
#include <set>

#include "engine/pipeline/layout.h"
#include "tests/pipeline/support.h"

namespace moe::test {
namespace {

using pipeline::Finding;
using pipeline::Placing;
using pipeline::Shape;

constexpr Shape kTwo{2, 2, 2};  // two ranks, stages and micro-batches

std::set<Finding> faults(const std::string& text, const Shape& shape = kTwo, bool spelled = false) {
  const pipeline::Table table = pipeline::parse_table(text, shape.ranks);
  const std::vector<Finding> found = find_faults(table.rows, shape, spelled);
  std::set<Finding> all(found.begin(), found.end());
  all.insert(table.unknown.begin(), table.unknown.end());
  return all;
}

TEST_CASE("rows that are printed and read again are the same") {
  for (const pipeline::ScheduleDef& def : pipeline::schedules()) {
    const Pipeline p = scheduled(def.name, {3, def.chunks, 6});
    std::string text;
    for (const pipeline::Row& row : p.rows) text += text_of(row) + "\n";
    CHECK(pipeline::parse_table(text, 0).rows == p.rows);
  }
  const std::string spelled = "0RECV_B11,(0F12;7B3)OVERLAP_F_B,3SEND_F0,2W1";
  CHECK(text_of(pipeline::parse_table(spelled, 1).rows[0]) == spelled);
}

TEST_CASE("empty cells, spaces, comments and blank lines of a table mean nothing") {
  const std::string plain = "0F0,0B0\n1F0,1B0\n";
  const std::string same = "# ranks in rows\n\n 0F0 ,, 0B0, # the first\r\n,1F0,\t1B0\n\n";
  CHECK(pipeline::parse_table(same, 2).rows == pipeline::parse_table(plain, 2).rows);
  CHECK(pipeline::parse_table("\n0F0", 2).rows.at(0).empty());
  CHECK(pipeline::parse_table("0F0", 2).rows.at(1).empty());
  CHECK_THROWS_AS(pipeline::parse_table("0F0\n1F0\n2F0", 2), UserError);
  CHECK_THROWS_AS(pipeline::parse_table("# nothing\n", 0), UserError);
}

TEST_CASE("cells that are no action are named, and pairs are a forward and a backward") {
  for (const std::string cell : {"F0", "0F", "0X0", "-1F0", "0F0B", "(0F0;0B1)", "0F0;0B1",
                                 "(0B0;0F1)OVERLAP_F_B", "(0F0;0I1)OVERLAP_F_B", "0SEND_W0"}) {
    const auto found = faults(cell + ",0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1");
    CHECK(found == std::set<Finding>{{"bad_action", 0, cell}});
  }
  CHECK(faults("0F0,0SEND_F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1") ==
        std::set<Finding>{{"bad_action", 0, "0SEND_F0"}});
}

TEST_CASE("each fault of a table is found") {
  CHECK(faults("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1").empty());
  CHECK(faults("0F0,0F1,0B0,0B1,2F0,0F2,0F99999999999\n1F0,1F1,1B0,1B1") ==
        std::set<Finding>{{"out_of_range", 0, "2F0"},
                          {"out_of_range", 0, "0F2"},
                          {"out_of_range", 0, "0F2147483647"}});
  CHECK(faults("0F0,0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1") == std::set<Finding>{{"twice", 0, "0F0"}});
  CHECK(faults("0F0,0F1,0B0\n1F0,1I0,1F1,1W1") ==
        std::set<Finding>{{"missing", -1, "0B1"}, {"missing", -1, "1W0"}, {"missing", -1, "1I1"}});
  CHECK(faults("0F0,0F1,0B0,0I0,0W0,0B1\n1F0,1F1,1B0,1B1") ==
        std::set<Finding>{{"whole_and_split", 0, "0B0"}});
  CHECK(faults("0F0,0F1,0B0,0B1,1F0\n1F1,1B0,1B1") == std::set<Finding>{{"wrong_rank", 0, "1F0"}});
  CHECK(faults("0B0,0F0,0I1,0F1,0W1\n1F0,(1F1;1B1)OVERLAP_F_B,1B0") ==
        std::set<Finding>{{"backward_before_forward", 0, "0B0"},
                          {"backward_before_forward", 0, "0I1"},
                          {"backward_before_forward", 1, "1B1"}});
  CHECK(faults("0F0,0F1,0W0,0I0,0B1\n1F0,1F1,1B0,1B1") ==
        std::set<Finding>{{"weight_before_input", 0, "0W0"}});
  CHECK(faults("0F0,0B0,0F1,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1") ==
        std::set<Finding>{{"deadlock", 0, "0B0"}, {"deadlock", 1, "(1F1;1B0)OVERLAP_F_B"}});
}

TEST_CASE("stages of a table are on the ranks of their placement") {
  CHECK(faults("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0", {2, 4, 1, Placing::kV}).empty());
  CHECK(faults("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0", {2, 4, 1, Placing::kLoop}).size() == 4);
  CHECK(faults("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1", {2, 2, 2, Placing::kTwoWay}).size() == 4);
  CHECK(faults("0F0,1F1,1B1,0B0\n0F1,1F0,1B0,0B1", {2, 2, 2, Placing::kTwoWay}).empty());
}

TEST_CASE("transfers that are spelled out are complete, in order, and each at its rank") {
  const std::string sends = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n";
  const std::string receives = "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1";
  CHECK(faults(sends + receives, kTwo, true).empty());
  CHECK(faults(sends + "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1", kTwo, true) ==
        std::set<Finding>{{"send_receive_order", 1, "1RECV_F1"}});
  CHECK(faults(sends + "1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1", kTwo, true) ==
        std::set<Finding>{{"receive_missing", 1, "1RECV_F1"}, {"send_missing", 1, "1SEND_B1"}});
  CHECK(faults(sends + receives + ",1SEND_F0,0SEND_F0", kTwo, true) ==
        std::set<Finding>{{"out_of_range", 1, "1SEND_F0"},
                          {"wrong_rank", 1, "0SEND_F0"},
                          {"twice", 1, "0SEND_F0"}});
  // A receive in front of the send that leads to it.
  CHECK(faults("0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", {2, 2, 1}, true) ==
        std::set<Finding>{{"deadlock", 0, "0RECV_B0"}, {"deadlock", 1, "1RECV_F0"}});
}

TEST_CASE("a layout's repeats are written out, and its stages may be empty") {
  using Stages = std::vector<std::string>;
  CHECK(pipeline::parse_layout("Et*3|(tt|)*2,m|L", 5) == Stages{"Ettt", "tt", "tt", "m", "L"});
  CHECK(pipeline::parse_layout(" E | | (t (t|) * 2)*2 ,L", 7) ==
        Stages{"E", "", "tt", "t", "tt", "t", "L"});
  CHECK(pipeline::parse_layout("E|*3t*0L", 4) == Stages{"E", "", "", "L"});
}

TEST_CASE("a layout that Megatron-LM would not take is refused with a code") {
  const auto code = [](const std::string& text, int64_t ranks) {
    return code_of([&] { pipeline::parse_layout(text, ranks); });
  };
  CHECK(code("Et|tL", 2).empty());
  for (const std::string text : {"Ex|L", "E(t|L", "Et)|L", "E*|L", "*2E|L", "Ett*q|L"}) {
    CHECK(code(text, 2) == "unknown_symbol");
  }
  CHECK(code("Et|t|L", 2) == "stages_not_multiple");
  for (const std::string text : {"t|L", "tE|L", "|EtL", "Et|EL"})
    CHECK(code(text, 2) == "embedding");
  for (const std::string text : {"E|t", "EL|t", "EtL|", "EL|tL"}) CHECK(code(text, 2) == "loss");
  CHECK(code("Etm|tL", 2) == "mtp_before_decoder");
  CHECK_THROWS_AS(pipeline::parse_layout("E(t*99999)*99999L", 1), UserError);
}

}  // namespace
}  // namespace moe::test
