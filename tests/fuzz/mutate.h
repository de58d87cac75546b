// What the fuzzers of loaders share: mutations of structure (JSON values, lines and numbers of a
// text, numbers in bytes), checksums repaired after one, and what counts as a finding.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <string_view>

namespace moe::fuzz {

using Random = std::minstd_rand;

/// Numbers at which loaders go wrong, as texts: around 0, powers of two and ten, no numbers.
std::string interesting_number(Random& random);
/// Changes one value of a JSON text: another number, type or length; a field dropped, doubled, put
/// elsewhere, all numbers of a list become one. Of a text that is no JSON: of `sample`.
std::string mutate_json(std::string_view text, Random& random, std::string_view sample);
/// Changes a number, a word or a line of a text.
std::string mutate_text(std::string_view text, Random& random);
/// Each line is JSON; one is changed, or lines as of a text.
std::string mutate_json_lines(std::string_view text, Random& random, std::string_view sample);
/// Overwrites 1, 2, 4 or 8 bytes by a number, or takes away, doubles or adds some.
std::string mutate_bytes(std::string_view bytes, Random& random);
/// Changes length, header or content of a file of safetensors. The length is right again where the
/// header has changed.
std::string mutate_safetensors(std::string_view bytes, Random& random, const std::string& good);
/// Makes the last 8 bytes the FNV-1a 64 of those before.
void repair_checksum(std::string& bytes);

/// What LLVMFuzzerCustomMutator does: mostly `mutate`, now and then what libFuzzer does to bytes.
using Mutation = std::function<std::string(std::string_view, Random&)>;
size_t mutated(uint8_t* data, size_t size, size_t max_size, unsigned seed, const Mutation& mutate);

/// Calls the loader. A UserError is what it may throw; anything else ends the process with the
/// input at fault kept by libFuzzer.
int loaded(const std::function<void()>& load);

/// A folder of this process's own, in memory where the machine has /dev/shm; removed at the end.
const std::string& folder();
void write(const std::string& path, std::string_view text);
std::string content(const std::string& path);

}  // namespace moe::fuzz
