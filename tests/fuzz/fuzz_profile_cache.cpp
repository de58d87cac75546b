// The profile cache: a whole SQLite file, or one row of any content in a good one. The first byte
// of a row's input says how its samples are stored, and whether the checksum fits.
#include <sqlite3.h>

#include <filesystem>

#include "engine/base/errors.h"
#include "engine/base/fnv.h"
#include "engine/cost/profile_cache.h"
#include "tests/fuzz/mutate.h"

using namespace moe;

namespace {

constexpr std::string_view kFile = "SQLite format 3";
const std::string kKey = "key";

/// A file with one row.
const std::string& good_file() {
  static const std::string bytes = [] {
    const std::string path = fuzz::folder() + "/good.db";
    ProfileCache(path).store(kKey, {{1, 2, 3}});
    return fuzz::content(path);
  }();
  return bytes;
}

std::string mutate(std::string_view bytes, fuzz::Random& random) {
  if (bytes.starts_with(kFile)) return fuzz::mutate_bytes(bytes, random);
  if (random() % 4 == 0) return fuzz::mutate_bytes(good_file(), random);
  const std::string text = bytes.size() < 2 ? "1,2,3" : std::string(bytes.substr(1));
  return static_cast<char>(random()) + fuzz::mutate_text(text, random);
}

/// It finds nothing, or what may be; what is stored then is found.
void use(ProfileCache& cache) {
  if (const auto samples = cache.find(kKey)) {
    for (const Nanoseconds ns : samples->ns)
      MOE_CHECK(ns >= 1 && ns <= kLongestSample, "{} ns", ns);
    MOE_CHECK(samples->lost >= 0 && samples->lost <= 1, "a share of {}", samples->lost);
  }
  cache.store(kKey, {{7}});
  MOE_CHECK(cache.find(kKey) == Samples{{7}}, "not found again");
}

void use_file(std::string_view bytes) {
  const std::string path = fuzz::folder() + "/file.db";
  for (const auto& entry : std::filesystem::directory_iterator(fuzz::folder())) {
    if (entry.path().filename().string().starts_with("file.db")) std::filesystem::remove(entry);
  }
  fuzz::write(path, bytes);
  ProfileCache cache(path);
  use(cache);
}

void use_row(uint8_t kind, std::string_view text) {
  static const std::string path = fuzz::folder() + "/row.db";
  static ProfileCache cache(path);
  static sqlite3_stmt* const store = [] {
    sqlite3* db = nullptr;
    sqlite3_stmt* statement = nullptr;
    MOE_CHECK(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
    MOE_CHECK(sqlite3_prepare_v2(db, "INSERT OR REPLACE INTO samples VALUES('key', ?, ?, ?, ?)", -1,
                                 &statement, nullptr) == SQLITE_OK);
    return statement;
  }();
  const auto size = static_cast<int>(text.size());
  if (kind % 4 == 0) {
    sqlite3_bind_blob(store, 1, text.data(), size, SQLITE_STATIC);
  } else {
    sqlite3_bind_text(store, 1, text.data(), size, SQLITE_STATIC);
  }
  const double lost = kind % 4 == 1 ? 1.5 : 0.5;  // a share is at most 1
  const bool disturbed = kind >= 128;
  sqlite3_bind_double(store, 2, lost);
  sqlite3_bind_int64(store, 3, disturbed ? 1 : 0);
  const std::string quality = fmt::format(";{};{}", lost, disturbed);
  uint64_t hash = fnv1a(kFnvStart, kKey.c_str(), kKey.size() + 1);
  hash = fnv1a(hash, text.data(), text.size());
  hash = fnv1a(hash, quality.data(), quality.size());
  if (kind / 4 % 4 == 0) {
    sqlite3_bind_text(store, 4, text.data(), size, SQLITE_STATIC);
  } else {
    sqlite3_bind_int64(store, 4, static_cast<int64_t>(hash) + (kind / 16 % 8 == 0 ? 1 : 0));
  }
  sqlite3_step(store);
  sqlite3_reset(store);
  use(cache);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, mutate);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  return fuzz::loaded([&] {
    if (bytes.starts_with(kFile)) return use_file(bytes);
    if (size > 0) use_row(data[0], bytes.substr(1));
  });
}
