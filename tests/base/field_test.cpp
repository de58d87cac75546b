#include "engine/base/field.h"

#include <array>
#include <catch2/catch.hpp>
#include <map>

namespace moe {
namespace {

enum class Color : uint8_t { kRed, kGreen };
constexpr std::array<const char*, 2> names_of(Color) {
  return {"red", "green"};
}

struct Lid {
  double weight = 2;
};
constexpr auto fields_of(const Lid*) {
  return field_table<Lid>(field("{}_kg", &Lid::weight).from(1, 5));
}

struct Seal {
  double gap = 2;
};
constexpr auto fields_of(const Seal*) {
  return field_table<Seal>(field("gap", &Seal::gap).from(1, 5));
}

struct Box {
  Nanoseconds open_ns = 0;
  int64_t corners = 8;
  Color color = Color::kRed;
  Lid top;
  Seal seal;
  std::string note;
  int64_t id = 0;
  double area() const { return 3; }
};
constexpr auto fields_of(const Box*) {
  return field_table<Box>(
      field("open_us", &Box::open_ns).in(kMicroseconds).from(1, 10), field("color", &Box::color),
      field("corners", &Box::corners).from(4, 8), inlined("top", &Box::top),
      field("seal", &Box::seal), internal(&Box::note, "for the test"),
      derived("area", &Box::area, "in the test's unit"), field("id", &Box::id).counted_from_one());
}

struct Twice {
  int64_t a = 0, b = 0;
};
constexpr auto fields_of(const Twice*) {
  return field_table<Twice>(field("a", &Twice::a), field("b", &Twice::a));
}

std::vector<std::string> names(const Box& box) {
  std::vector<std::string> all;
  for_each_field(box,
                 [&](const std::string& name, const auto&, const auto&) { all.push_back(name); });
  return all;
}

}  // namespace

static_assert(field_detail::num_members<Box>() == 7);
static_assert(rows_differ<Box>());
static_assert(!rows_differ<Twice>());

TEST_CASE("a struct's named members are visited in the order of its table, inlined ones too") {
  CHECK(names({}) ==
        std::vector<std::string>{"open_us", "color", "corners", "top_kg", "seal", "area", "id"});
}

TEST_CASE("a visit gets the member itself, and what is computed") {
  Box box;
  double area = 0;
  for_each_field(box, [&]<class Row, class M>(const std::string& name, const Row&, M& value) {
    if constexpr (std::is_same_v<M, int64_t>) value = 6;
    if constexpr (std::is_same_v<M, const double>) area = value;
    if constexpr (std::is_same_v<M, double>) value += name == "top_kg" ? 1 : 0;
  });
  CHECK(box.corners == 6);
  CHECK(box.top.weight == 3);
  CHECK(area == 3);
}

TEST_CASE("a number out of its range is an error in the unit in which it is written") {
  CHECK_NOTHROW(check_fields(Box{}, "box"));  // open_ns is 0 by default, below its range
  CHECK_NOTHROW(check_fields(Box{.open_ns = 10'000}, "box"));
  CHECK_THROWS_WITH(check_fields(Box{.open_ns = 10'001}, "box"),
                    "box.open_us = 10.001: must be from 1 to 10");
  CHECK_THROWS_WITH(check_fields(Box{.corners = 3}, "box"), "box.corners = 3: must be from 4 to 8");
  CHECK_THROWS_WITH(check_fields(Box{.top = {NAN}}, "box"),
                    "box.top_kg = nan: must be from 1 to 5");
  CHECK_THROWS_WITH(check_fields(Box{.seal = {6}}, "box"), "box.seal.gap = 6: must be from 1 to 5");
}

TEST_CASE("a value of an enumeration is found by its name, or the nearest one is said") {
  CHECK(name_of(Color::kGreen) == std::string("green"));
  CHECK(value_named<Color>("color", "green") == Color::kGreen);
  CHECK_THROWS_WITH(value_named<Color>("color", "grean"),
                    Catch::Contains("unknown color 'grean'") && Catch::Contains("'green'"));
}

TEST_CASE(
    "a row without name or doc, or with another's name, stops the program where it is listed") {
  struct Row {
    const char* name;
    std::string doc;
  };
  CHECK_NOTHROW(check_rows("rows", std::vector<Row>{{"a", "x"}, {"b", "x"}}));
  CHECK_THROWS_WITH(check_rows("rows", std::vector<Row>{{"a", "x"}, {"a", "x"}}),
                    Catch::Contains("two entries of the table of rows are named 'a'"));
  CHECK_THROWS_WITH(check_rows("rows", std::vector<Row>{{"a", "x"}, {"b", ""}}),
                    Catch::Contains("'b' of the table of rows has no doc"));
  CHECK_THROWS_WITH(check_rows("rows", std::vector<Row>{{nullptr, "x"}}),
                    Catch::Contains("an entry of the table of rows has no name"));
}

}  // namespace moe
