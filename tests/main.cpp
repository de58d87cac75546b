// Catch's sources with its main function, where the package does not bring them compiled.
#include <catch2/catch.hpp>
