// Files in the safetensors format: what is written is read again, also in other layouts and by
// several files, and files that are not in the format are refused.
#include <catch2/catch.hpp>
#include <filesystem>

#include "engine/base/errors.h"
#include "engine/exec/safetensors.h"
#include "engine/ops/ops.h"
#include "tests/base/folder.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;
using Init = ParamInfo::Init;
namespace fs = std::filesystem;

class File {
 public:
  explicit File(const std::string& name) : name_(name) {}
  std::string path() const { return folder_.path(name_); }
  void write(const std::string& bytes) const { folder_.write(name_, bytes); }

 private:
  Folder folder_;
  std::string name_;
};

/// A file with this header and content.
std::string bytes_of(const std::string& header, const std::string& content = "") {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + content;
}

Model model_of(std::vector<ParamInfo> parameters, std::vector<ParamInfo> states = {}) {
  Model model({}, Graph(op_table()));
  model.parameters = std::move(parameters);
  model.states = std::move(states);
  return model;
}

/// Returns a model with tensors of every layout.
const Model& some_model() {
  static const Model model = model_of({{"whole", {3, 4}, {}, Init::kUniform},
                                       {"halves", {6, 2}, {}, Init::kUniform},
                                       {"ex.w", {2, 4, 3}, {.moe = true}, Init::kUniform},
                                       {"ex.t", {2, 4, 3}, {.moe = true}, Init::kUniform},
                                       {"ex.b", {2, 4}, {.moe = true}, Init::kZero}},
                                      {{"bias", {5}, {}, Init::kZero}});
  return model;
}
const TensorSources kSources = {{"whole", {{"w"}}},
                                {"halves", {{"up", "down"}}},
                                {"ex.w", {{"e.%d.a", "e.%d.b"}}},
                                {"ex.t", {{"t"}, true, true}},
                                {"ex.b", {{"tb"}, false, true}},
                                {"bias", {{"b"}}}};

double number(uint64_t element, uint64_t tensor) {
  return static_cast<double>(element) - 8.0 * static_cast<double>(tensor);
}

std::shared_ptr<const Safetensors> opened(const File& file) {
  return std::make_shared<const Safetensors>(std::vector{file.path()});
}

std::string refusal(const std::string& bytes) {
  const File file("bad.safetensors");
  file.write(bytes);
  try {
    opened(file);
  } catch (const UserError& e) {
    return e.what();
  }
  return "(no error)";
}

TEST_CASE("what is written is read again, in every layout and type") {
  for (const FileType type : {FileType::kF64, FileType::kF32, FileType::kBF16}) {
    const File file("all.safetensors");
    write_safetensors(file.path(), some_model(), kSources, type, number);
    const auto read = opened(file);
    const LoadedParameters loaded(read, some_model(), kSources);
    CHECK(loaded.unused().empty());
    for (size_t t = 0; t < 6; ++t) {
      const ParamInfo& info = t < 5 ? some_model().parameters[t] : some_model().states[0];
      for (int64_t i = 0; i < num_elements(info.shape); ++i) {
        CHECK(loaded.value(static_cast<uint64_t>(i), t) == number(static_cast<uint64_t>(i), t));
      }
    }
  }
}

TEST_CASE("parts lie below each other, experts apart, and columns before rows where it says so") {
  const File file("layout.safetensors");
  write_safetensors(file.path(), some_model(), kSources, FileType::kF32, number);
  const auto read = opened(file);
  CHECK(read->find("up")->shape == Shape{3, 2});
  CHECK(read->find("down")->at(0) == number(6, 1));
  CHECK(read->find("e.1.b")->shape == Shape{2, 3});
  CHECK(read->find("e.1.b")->at(0) == number(12 + 6, 2));
  // [experts, cols, rows], where rows 0 and 2 of the parameter are rows 0 and 1 of the file.
  CHECK(read->find("t")->shape == Shape{2, 3, 4});
  CHECK(read->find("t")->at(1) == number(2 * 3, 3));
  CHECK(read->find("t")->at(4) == number(1, 3));
  CHECK(read->find("tb")->at(4 + 2) == number(4 + 1, 4));
}

TEST_CASE("tensors may lie in several files, and half floats are read") {
  const File one("one.safetensors"), two("two.safetensors");
  one.write(bytes_of(R"({"a":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}})",
                     std::string("\x00\x3c\x00\xc0\x01\x00\x00\x7c", 8)));
  two.write(bytes_of(R"({"n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},
    "b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})",
                     std::string(8, 'x') + "\x80\x3f"));
  const Safetensors both({one.path(), two.path()});
  CHECK(both.find("a")->at(0) == 1);
  CHECK(both.find("a")->at(1) == -2);
  CHECK(both.find("a")->at(2) == std::ldexp(1.0, -24));
  CHECK(std::isinf(both.find("a")->at(3)));
  CHECK(both.find("b")->at(0) == 1);
  CHECK(both.find("n") == nullptr);
  CHECK_THROWS_WITH(Safetensors({one.path(), one.path()}), Contains("is in another file"));
  CHECK(files_of_index(R"({"weight_map":{"a":"x","b":"y","c":"x"}})", "i") ==
        std::vector<std::string>{"x", "y"});
  CHECK_THROWS_WITH(files_of_index("{}", "i.json"), Contains("i.json: it is not the index"));
}

/// A file of tensors { name, type, shape }, with their bytes in turn.
std::string file_of(const std::vector<FileTensor>& tensors, const std::string& content) {
  return safetensors_header({}, tensors) + content;
}

TEST_CASE("numbers of 8 bits are read times the scale of their block of 128 x 128") {
  const File file("fp8.safetensors");
  constexpr int64_t kRows = 130, kCols = 257;
  const std::map<uint8_t, double> codes = {{0x00, 0},   {0x38, 1},         {0xb8, -1},
                                           {0x7e, 448}, {0x01, 1.0 / 512}, {0x08, 1.0 / 64},
                                           {0xc4, -3},  {0x77, 240}};
  std::string bytes;
  std::vector<double> values;
  for (int64_t i = 0; i < kRows * kCols; ++i) {
    const auto code = std::next(codes.begin(), i * 7 % 11 % 8);
    bytes += static_cast<char>(code->first);
    values.push_back(code->second);
  }
  const std::vector<float> scales = {1, 0.5, 3, -2, 8, 0.25};  // 2 x 3 blocks
  file.write(
      file_of({{"w", "F8_E4M3", {kRows, kCols}, bytes.size()}, {"w_scale_inv", "F32", {2, 3}, 24}},
              bytes + std::string(reinterpret_cast<const char*>(scales.data()), 24)));
  const Model model = model_of({{"w", {kRows, kCols}, {}, Init::kUniform}});
  const LoadedParameters loaded(opened(file), model, {{"w", {{"w"}}}});
  CHECK(loaded.unused().empty());
  for (int64_t i = 0; i < kRows * kCols; ++i) {
    const auto block = static_cast<size_t>(i / kCols / 128 * 3 + i % kCols / 128);
    REQUIRE(loaded.value(static_cast<uint64_t>(i), 0) ==
            values[static_cast<size_t>(i)] * scales[block]);
  }
  file.write(file_of({{"w", "F8_E4M3", {kRows, kCols}, bytes.size()}}, bytes));
  CHECK_THROWS_WITH(LoadedParameters(opened(file), model, {{"w", {{"w"}}}}),
                    Contains("has no scales 'w_scale_inv'"));
}

TEST_CASE("blocks of MXFP4 are read, of rows that plain files have as columns too") {
  const File file("mxfp4.safetensors");
  const double codes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
  // [2 experts, 3 rows, 64 columns]: 2 blocks of 16 bytes per row.
  std::string blocks, scales;
  for (int i = 0; i < 2 * 3 * 2 * 16; ++i) blocks += static_cast<char>(i * 37);
  for (int i = 0; i < 2 * 3 * 2; ++i) scales += static_cast<char>(120 + i);
  file.write(file_of({{"t_blocks", "U8", {2, 3, 2, 16}, 192}, {"t_scales", "U8", {2, 3, 2}, 12}},
                     blocks + scales));
  const Model model = model_of({{"t", {2, 3, 64}, {.moe = true}, Init::kUniform}});
  for (const bool transposed : {false, true}) {
    const LoadedParameters loaded(opened(file), model, {{"t", {{"t"}, transposed}}});
    CHECK(loaded.unused().empty());
    for (int i = 0; i < 2 * 3 * 64; ++i) {
      const int byte = i / 2 * 37 & 255;
      REQUIRE(loaded.value(static_cast<uint64_t>(i), 0) ==
              std::ldexp(codes[i % 2 == 0 ? byte & 15 : byte >> 4], 120 + i / 32 - 127));
    }
  }
  const Model other = model_of({{"t", {2, 3, 32}, {.moe = true}, Init::kUniform}});
  CHECK_THROWS_WITH(LoadedParameters(opened(file), other, {{"t", {{"t"}}}}),
                    Contains("'t_scales' is [2,3,2], but the parameter t needs [2,3,1]"));
}

TEST_CASE("names below a wrapped model's prefix, experts in one tensor, and norms of 1 + w") {
  const File file("wrapped.safetensors");
  const TensorSources in_file = {{"norm", {{"model.language_model.norm.weight"}}},
                                 {"ex.w", {{"language_model.model.experts.w"}}}};
  const Model model =
      model_of({{"norm", {4}, {}, Init::kOne}, {"ex.w", {2, 4, 3}, {.moe = true}, Init::kUniform}});
  write_safetensors(file.path(), model, in_file, FileType::kF32, number);
  const TensorSources asked = {
      {"norm", {.names = {"model.norm.weight"}, .plus = 1}},
      {"ex.w",
       {.names = {"model.experts.%d.a", "model.experts.%d.b"},
        .others = {{.names = {"model.other"}}, {.names = {"model.experts.w"}}}}}};
  const LoadedParameters loaded(opened(file), model, asked);
  CHECK(loaded.unused().empty());
  CHECK(loaded.value(2, 0) == number(2, 0) + 1);
  CHECK(loaded.value(17, 1) == number(17, 1));
  write_safetensors(file.path(), model, asked, FileType::kF32, number);
  CHECK(opened(file)->find("model.norm.weight")->at(3) == number(3, 0) - 1);
  CHECK(opened(file)->find("model.experts.1.b") != nullptr);
}

TEST_CASE("files that are not in the format are refused") {
  CHECK_THAT(refusal(""), Contains("shorter than 8 bytes"));
  CHECK_THAT(refusal(std::string(8, '\xff')), Contains("its header has"));
  CHECK_THAT(refusal(bytes_of("[]")), Contains("its header is not a JSON object"));
  CHECK_THAT(refusal(bytes_of(R"({"a":{"shape":[1]}})")), Contains("'a' has no dtype"));
  const auto one = [](const std::string& shape, const std::string& offsets) {
    return refusal(
        bytes_of(R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
                 "12345678"));
  };
  CHECK(one("[2]", "[0,8]") == "(no error)");
  CHECK_THAT(one("[3]", "[0,12]"), Contains("lies in bytes 0 to 12 of 8"));
  CHECK_THAT(one("[1]", "[0,8]"), Contains("'a' [1] of type F32 lies in bytes"));
  for (const char* const shape :
       {"[-2]", "[1.5]", "[1e308]", "[18446744073709551615]", "[\"2\"]"}) {
    CHECK_THAT(one(shape, "[0,8]"), Contains("shape and data_offsets of its tensor 'a' must be"));
  }
  CHECK_THAT(one("[2]", "[0,8.5]"), Contains("must be whole numbers of at least 0"));
  CHECK_THAT(one("2", "[0,8]"), Contains("'a' has no dtype"));
  CHECK_THAT(one("[1]", "[8,4]"), Contains("lies in bytes"));
  CHECK_THAT(one("[4611686018427387904,4]", "[0,0]"), Contains("lies in bytes"));
  CHECK_THAT(one("[1]", "[-1,3]"), Contains("'a'"));
}

TEST_CASE("tensors must fill the file in turn, and no name may stand twice") {
  const auto refused = [](const std::string& header) {
    return refusal(bytes_of(header, std::string(16, 'x')));
  };
  const auto two = [&](const std::string& a, const std::string& b, const char* type = "F32") {
    return refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + a +
                   R"(},"b":{"dtype":")" + type + R"(","shape":[2],"data_offsets":)" + b + "}}");
  };
  CHECK(two("[0,8]", "[8,16]") == "(no error)");
  CHECK(two("[8,16]", "[0,8]") == "(no error)");
  CHECK_THAT(two("[0,8]", "[0,8]"), Contains("'a' and 'b' have the bytes from 0 to 8 in common"));
  CHECK_THAT(two("[4,12]", "[0,8]"), Contains("'b' and 'a' have the bytes from 4 to 8 in common"));
  CHECK_THAT(two("[0,8]", "[4,12]", "I32"), Contains("have the bytes from 4 to 8 in common"));
  CHECK_THAT(two("[0,8]", "[0,99]", "I64"), Contains("'b' [2] of type I64 lies in bytes 0 to 99"));
  const std::string one = R"({"dtype":"F32","shape":[2],"data_offsets":[)";
  CHECK_THAT(refused(R"({"a":)" + one + "8,16]}}"), Contains("from 0 to 8 before its tensor 'a'"));
  CHECK_THAT(refused(R"({"a":)" + one + "0,8]}}"), Contains("have 8 bytes in all, but the file"));
  CHECK_THAT(refused(R"({"a":)" + one + R"(0,8]},"a":)" + one + "8,16]}}"),
             Contains("'a' stands twice in one object"));
  CHECK_THAT(refused(R"({"a":{"dtype":"F64","dtype":"F32","shape":[4],"data_offsets":[0,16]}})"),
             Contains("'dtype' stands twice"));
  CHECK(refused(R"({"e":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},
    "a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})") == "(no error)");
}

TEST_CASE("a file that becomes shorter while it is open is an error with its name") {
  const File file("shorter.safetensors");
  write_safetensors(file.path(), some_model(), kSources, FileType::kF32, number);
  const LoadedParameters loaded(opened(file), some_model(), kSources);
  fs::resize_file(file.path(), fs::file_size(file.path()) - 4);
  CHECK(loaded.value(1, 0) == number(1, 0));  // at the file's beginning
  CHECK_THROWS_WITH(loaded.value(0, 5), Contains("shorter.safetensors: it ends after"));
}

TEST_CASE("a header whose values would take more memory than is allowed is refused") {
  std::string header = R"({"__metadata__":[)";
  for (int i = 0; i < 4'000'000; ++i) header += "{},";
  CHECK_THAT(refusal(bytes_of(header + "{}]}")), Contains("MiB of memory; allowed: 512 MiB"));
}

TEST_CASE("a model that the files do not fit is refused with both names") {
  const File file("fit.safetensors");
  write_safetensors(file.path(), some_model(), kSources, FileType::kF32, number);
  const auto read = opened(file);
  const auto refused = [&](const Model& model, const TensorSources& sources) -> std::string {
    try {
      const LoadedParameters loaded(read, model, sources);
    } catch (const UserError& e) {
      return e.what();
    }
    return "(no error)";
  };
  const Model one = model_of({{"whole", {3, 4}, {}, Init::kUniform}});
  CHECK(refused(one, kSources) == "(no error)");
  CHECK(LoadedParameters(read, one, kSources).unused().size() == 9);
  CHECK_THAT(refused(one, {}), Contains("parameter whole: the model does not say"));
  CHECK_THAT(refused(one, {{"whole", {{"x"}}}}), Contains("it has no tensor 'x'"));
  const File typed("typed.safetensors");
  const auto eight = [](const char* name, const char* type, int at) {
    return fmt::format(R"("{}":{{"dtype":"{}","shape":[8],"data_offsets":[{},{}]}})", name, type,
                       at, at + 8);
  };
  typed.write(bytes_of("{" + eight("w", "F8_E5M2", 0) + "," + eight("m_blocks", "U8", 8) + "," +
                           eight("m_scales", "U8", 16) + "}",
                       "123456781234567812345678"));
  const auto of_type = [&](const char* name) -> std::string {
    try {
      const LoadedParameters loaded(opened(typed), one, {{"whole", {{name}}}});
    } catch (const UserError& e) {
      return e.what();
    }
    return "(no error)";
  };
  CHECK_THAT(of_type("w"), Contains("its tensor 'w' is of type F8_E5M2") &&
                               Contains("read are F64, F32, F16, BF16, F8_E4M3 with scales"));
  CHECK_THAT(of_type("m"), Contains("'m_blocks' has blocks of 32 numbers, but rows of 4"));
  CHECK_THAT(refused(one, {{"whole", {{"up"}}}}),
             Contains("its tensor 'up' is [3,2], but the parameter whole needs [3,4]"));
  CHECK_THAT(refused(one, {{"whole", {{"up", "down"}}}}), Contains("3 rows do not divide into 2"));
}

}  // namespace
}  // namespace moe::test
