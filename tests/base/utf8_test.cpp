#include "engine/base/utf8.h"

#include <catch2/catch.hpp>

using moe::first_invalid_byte;
using moe::printable;

TEST_CASE("the first byte that is not UTF-8 is found, whatever is wrong with it") {
  CHECK_FALSE(first_invalid_byte(""));
  CHECK_FALSE(first_invalid_byte("a\n\t\x1b é € 𝄞 \xf4\x8f\xbf\xbf"));
  CHECK(first_invalid_byte("ab\xff") == 2u);
  CHECK(first_invalid_byte("\x80") == 0u);
  CHECK(first_invalid_byte("a\xc3") == 1u);               // cut off
  CHECK(first_invalid_byte("\xc0\xaf") == 0u);            // overlong
  CHECK(first_invalid_byte("a\xed\xa0\x80") == 1u);       // a surrogate
  CHECK(first_invalid_byte("\xf4\x90\x80\x80") == 0u);    // above U+10FFFF
  CHECK(first_invalid_byte("é\xe2\x82\x28 rest") == 2u);  // a wrong third byte
}

TEST_CASE("what is printed holds nothing that acts on a terminal") {
  CHECK(printable("plain é €\n\tline") == "plain é €\n\tline");
  CHECK(printable("\x1b[31mred\x07\r\x7f") == "\\x1b[31mred\\x07\\x0d\\x7f");
  CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\xc2\x9b"
                  "31m") == "\\x9b31m");  // CSI as one character
  CHECK(printable("\xe2\x80\xae"
                  "fdp.exe\xe2\x81\xa6") == "\\u202efdp.exe\\u2066");
  CHECK(printable("a\xff\xc3") == "a\\xff\\xc3");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string out = printable(std::string(1, static_cast<char>(byte)));
    CHECK_FALSE(first_invalid_byte(out));
  }
}
