#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "tests/routing/fixture.h"

using namespace moe;
using Catch::Matchers::Contains;
using moe::test::OwnedMaps;
using Ints = std::vector<int32_t>;

TEST_CASE("the builder clears what the maps held") {
  OwnedMaps m(3, 2, 2, 4);
  RoutingBuilder builder(m.maps);
  CHECK(m.expert == Ints(6, -1));
  CHECK(m.choice_slot == Ints(6, -1));
  CHECK(m.slot_choice == Ints(8, -1));
  CHECK(m.counts == Ints(2, 0));
}

TEST_CASE("places are given in the order of the calls, and a full expert drops") {
  OwnedMaps m(3, 2, 2, 1);
  RoutingBuilder builder(m.maps);
  CHECK(builder.left(1) == 1);
  CHECK(builder.take(2, 1));
  CHECK(builder.left(1) == 0);
  CHECK_FALSE(builder.take(0, 1));
  CHECK(builder.left(1) == 0);
  CHECK(builder.take(0, 0));
  CHECK(m.expert == Ints{1, 0, -1, -1, 1, -1});
  CHECK(m.choice_slot == Ints{-1, 0, -1, -1, 1, -1});
  CHECK(m.slot_choice == Ints{1, 4});
  CHECK(m.counts == Ints{1, 1});
}

TEST_CASE("take fills the columns that take_at left") {
  OwnedMaps m(1, 4, 3, 2);
  RoutingBuilder builder(m.maps);
  CHECK(builder.take_at(0, 1, 3));
  CHECK(builder.take(0, 0));
  CHECK(builder.take(0, 2));
  CHECK(m.expert == Ints{0, 3, 2});
}

TEST_CASE("fill goes through all first choices in the given order before the second ones") {
  OwnedMaps m(3, 3, 2, 3);
  RoutingBuilder builder(m.maps);
  builder.fill(Ints{0, 1, 1, 0, 0, -1}, 2, Ints{2, 1, 0});
  CHECK(m.tokens_of(0) == Ints{2, 0, 1});
  CHECK(m.tokens_of(1) == Ints{1, 0});
  CHECK(m.expert_of(2, 1) == -1);
}

TEST_CASE("fill leaves out the tokens that the order leaves out") {
  OwnedMaps m(3, 1, 1, 3);
  RoutingBuilder builder(m.maps);
  builder.fill(Ints{0, 0, 0}, 1, Ints{1});
  CHECK(m.expert == Ints{-1, 0, -1});
}

TEST_CASE("positions begin after what earlier parts used") {
  OwnedMaps m(4, 2, 1, 3);
  RoutingBuilder builder(m.maps, Ints{2, 3});
  CHECK(builder.left(0) == 1);
  CHECK(builder.left(1) == 0);
  CHECK(builder.take(0, 0));
  CHECK_FALSE(builder.take(1, 0));
  CHECK_FALSE(builder.take(2, 1));
  CHECK(m.choice_slot == Ints{2, -1, -1, -1});
  CHECK(m.counts == Ints{3, 3});
}

TEST_CASE("a part counts tokens and places through the whole batch and leaves other places alone") {
  OwnedMaps m(2, 2, 1, 3);
  m.maps.part = true;
  m.maps.first_token = 4;
  m.slot_choice = {7, 8, 9, 7, 8, 9};
  m.maps.slot_choice = m.slot_choice.data();
  RoutingBuilder builder(m.maps, Ints{1, 2});
  CHECK(builder.take(1, 0));
  CHECK(builder.take(0, 0));
  builder.order_by_token();
  CHECK(m.choice_slot == Ints{1, 2});
  CHECK(m.slot_choice == Ints{7, 4, 5, 7, 8, 9});
  CHECK(m.counts == Ints{3, 2});
}

TEST_CASE("order_by_token keeps who holds a place and numbers the places by token") {
  OwnedMaps m(3, 3, 2, 3);
  RoutingBuilder builder(m.maps);
  builder.fill(Ints{0, 1, 1, 0, 0, -1}, 2, Ints{2, 1, 0});
  builder.order_by_token();
  CHECK(m.tokens_of(0) == Ints{0, 1, 2});
  CHECK(m.tokens_of(1) == Ints{0, 1});
  for (size_t i = 0; i < m.choice_slot.size(); ++i) {
    if (m.choice_slot[i] >= 0) {
      CHECK(m.slot_choice[static_cast<size_t>(m.choice_slot[i])] == static_cast<int32_t>(i));
    }
  }
}

TEST_CASE("a token out of range is refused") {
  OwnedMaps m(2, 2, 1, 1);
  RoutingBuilder builder(m.maps);
  CHECK_THROWS_WITH(builder.take(2, 0), Contains("no token 3; tokens count from 1 to 2"));
  CHECK_THROWS_WITH(builder.take(-1, 0), Contains("no token 0"));
  CHECK_THROWS_WITH(builder.take_at(2, 0, 0), Contains("no token 3"));
  CHECK_THROWS_WITH(builder.fill(Ints{0, 0}, 1, Ints{0, 5}), Contains("no token 6"));
  CHECK_THROWS_AS(builder.take(2, 0), UserError);
}

TEST_CASE("an expert out of range is refused") {
  OwnedMaps m(2, 2, 1, 1);
  RoutingBuilder builder(m.maps);
  CHECK_THROWS_WITH(builder.take(0, 2), Contains("no expert 3; experts count from 1 to 2"));
  CHECK_THROWS_WITH(builder.take(0, -1), Contains("no expert 0"));
  CHECK_THROWS_WITH(builder.fill(Ints{-2, 0}, 1), Contains("no expert -1"));
}

TEST_CASE("a choice too many is refused") {
  OwnedMaps m(2, 3, 2, 1);
  RoutingBuilder builder(m.maps);
  builder.take(0, 0);
  builder.take(0, 1);
  CHECK_THROWS_WITH(builder.take(0, 2), Contains("token 1 has more than 2 choices"));
  CHECK_THROWS_WITH(builder.take_at(1, 2, 0), Contains("token 2 has more than 2 choices"));
  CHECK_THROWS_WITH(builder.take_at(1, -1, 0),
                    Contains("token 2: there is no choice 0; choices count from 1"));
}

TEST_CASE("an expert that the token chose is refused the second time, dropped or not") {
  OwnedMaps m(2, 2, 2, 1);
  RoutingBuilder builder(m.maps);
  builder.take(0, 1);
  CHECK_THROWS_WITH(builder.take(0, 1), Contains("token 1 chose expert 2 twice"));
  builder.take(1, 1);
  CHECK_THROWS_WITH(builder.take(1, 1), Contains("token 2 chose expert 2 twice"));
  CHECK_THROWS_WITH(builder.take_at(1, 0, 0),
                    Contains("choice 1 of token 2 is made already (expert 2)"));
}

TEST_CASE("an order that names a token twice is refused") {
  OwnedMaps m(3, 2, 1, 3);
  RoutingBuilder builder(m.maps);
  CHECK_THROWS_WITH(builder.fill(Ints{0, 1, 0}, 1, Ints{2, 2}),
                    Contains("of token 3 is made already"));
}

TEST_CASE("choices of the wrong length are refused") {
  OwnedMaps m(3, 2, 1, 3);
  RoutingBuilder builder(m.maps);
  CHECK_THROWS_WITH(builder.fill(Ints{0, 1}, 1), Contains("2 choices are given"));
  CHECK_THROWS_WITH(builder.fill(Ints{0, 1, 0}, 1, Ints(4, 0)), Contains("lists 4 tokens"));
}
