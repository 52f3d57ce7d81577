#include "worker/data/data_form.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/exit_code.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

constexpr uint32_t kUint16Ids = 1 << 16;
constexpr uint64_t kMinRecognizedTokens = 64;
constexpr uint64_t kExaminedTokens = 1 << 20;  // the rest of a long file stays on its disk
constexpr uint16_t kUpperHalf = 16;            // no tokenizer has 2^20 ids
constexpr uint16_t kWideLowerHalf = 256;
constexpr uint64_t kLongestFirstLine = 1 << 20;
constexpr absl::string_view kEpsd = "an .epsd file";

struct Form {
  absl::string_view name;
  absl::string_view magic;                 // the file's first bytes
  std::vector<absl::string_view> endings;  // of the file's name
};

// The magic numbers of RFC 1952 (with its only method, deflate), the .xz format 1.2.1, bzip2, RFC
// 8878, Apache Parquet, Arrow's file, NumPy's format 1.0 and our own. The first three, `eps data
// make` unpacks.
const std::vector<Form>& BinaryForms() {
  static const auto* const forms = new std::vector<Form>{
      {"gzip", "\x1f\x8b\x08", {".gz", ".tgz"}},
      {"xz", absl::string_view("\xfd\x37zXZ\0", 6), {".xz"}},
      {"bzip2", "BZh", {".bz2"}},
      {"zstd", "\x28\xb5\x2f\xfd", {".zst", ".zstd"}},
      {"Parquet", "PAR1", {".parquet"}},
      {"Arrow", "ARROW1", {".arrow", ".feather"}},
      {"NumPy", "\x93NUMPY", {".npy"}},
      {kEpsd, "EPSDATA1", {}},
  };
  return *forms;
}

absl::Status Refusal(absl::string_view found, absl::string_view need, const std::string& path,
                     const std::string& key) {
  return WithExitCode(absl::InvalidArgumentError(
                          absl::StrCat("data file ", path, " (", key, ") ", found, ": ", need)),
                      ExitCode::kDataInvalid);
}

bool EndsWithAny(absl::string_view path, const std::vector<absl::string_view>& endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](auto ending) { return absl::EndsWithIgnoreCase(path, ending); });
}

// bzip2's three letters could begin a text; its block header or end mark follows them.
bool HasMagic(const Form& form, absl::string_view bytes) {
  if (!absl::StartsWith(bytes, form.magic)) return false;
  if (form.name != "bzip2") return true;
  if (bytes.size() < 10) return false;
  const absl::string_view mark = bytes.substr(4, 6);
  return mark == "\x31\x41\x59\x26\x53\x59" || mark == "\x17\x72\x45\x38\x50\x90";
}

// Returns the binary form of the file; null if it has none of them.
const Form* BinaryFormOf(absl::string_view bytes, absl::string_view path) {
  for (const Form& form : BinaryForms()) {
    if (HasMagic(form, bytes) || EndsWithAny(path, form.endings)) return &form;
  }
  return nullptr;
}

// Returns whether the first line that is not blank is a whole JSON object.
bool BeginsWithJsonObject(absl::string_view bytes) {
  const absl::string_view text =
      absl::StripLeadingAsciiWhitespace(bytes.substr(0, kLongestFirstLine));
  if (!absl::StartsWith(text, "{")) return false;
  return nlohmann::json::accept(text.begin(), std::find(text.begin(), text.end(), '\n'));
}

uint16_t Uint16At(absl::string_view bytes, uint64_t i) {
  return static_cast<uint16_t>(static_cast<uint8_t>(bytes[2 * i]) |
                               static_cast<uint8_t>(bytes[2 * i + 1]) << 8);
}

// The upper half of a uint32 id, and three quarters of a uint64, are below kUpperHalf. If they are
// not all 0, the lower halves cover all of uint16.
bool LooksWiderThanUint16(absl::string_view bytes) {
  if (bytes.size() % 4 != 0) return false;
  const uint64_t tokens = std::min<uint64_t>(bytes.size() / 2, kExaminedTokens);
  if (tokens < kMinRecognizedTokens) return false;
  uint16_t lower = 0;
  uint16_t upper = 0;
  for (uint64_t i = 0; i < tokens && upper < kUpperHalf; i += 2) {
    lower = std::max(lower, Uint16At(bytes, i));
    upper = std::max(upper, Uint16At(bytes, i + 1));
  }
  return upper == 0 ? lower > 0 : upper < kUpperHalf && lower >= kWideLowerHalf;
}

constexpr absl::string_view kNeedBin =
    "write one flat array of little-endian uint16 ids, or make an .epsd file of the text itself "
    "(eps data make)";

// Kinds of `eps data make`, by the endings of names.
constexpr struct {
  absl::string_view ending, kind;
} kKinds[] = {{".jsonl", "jsonl"}, {".ndjson", "jsonl"},    {".json", "jsonl"},   {".csv", "csv"},
              {".tsv", "csv"},     {".parquet", "parquet"}, {".arrow", "parquet"}};

// Removes the ending of a packed file, which `eps data make` unpacks by itself.
absl::string_view WithoutPacking(absl::string_view path) {
  for (const absl::string_view ending : {".gz", ".xz", ".bz2", ".zst"}) {
    if (absl::EndsWithIgnoreCase(path, ending)) return path.substr(0, path.size() - ending.size());
  }
  return path;
}

// Returns the kind of `eps data make` for a file: by its name, else `otherwise`.
absl::string_view KindOf(absl::string_view path, absl::string_view otherwise) {
  for (const auto& [ending, kind] : kKinds) {
    if (absl::EndsWithIgnoreCase(WithoutPacking(path), ending)) return kind;
  }
  return otherwise;
}

// Returns a word of a command line.
std::string Quoted(absl::string_view word) {
  const bool plain = std::all_of(word.begin(), word.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("_-./=,+", c);
  });
  return plain ? std::string(word)
               : absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

// Returns the rest of a refusal: how to make an .epsd file. `kind` is the one of a file whose name
// does not say it.
std::string NeedMade(absl::string_view kind, const std::string& path) {
  return absl::StrCat("make token ids of it with the model's tokenizer:\n  ",
                      MakeDataCommand(KindOf(path, kind), path));
}

// Returns the rest of a refusal of a binary form.
std::string NeedUnpacked(const Form& form, const std::string& path) {
  if (form.name == kEpsd) return "its name must end in .epsd; rename it";
  if (form.name == "NumPy") return std::string(kNeedBin);
  if (form.name == "zstd") {
    const std::string unpacked(WithoutPacking(path));
    return absl::StrCat("unpack it first; then ", NeedMade("text", unpacked));
  }
  const bool is_table = form.name == "Parquet" || form.name == "Arrow";
  return NeedMade(is_table ? "parquet" : "text", path);
}

}  // namespace

std::string MakeDataCommand(absl::string_view kind, const std::string& path) {
  absl::string_view stem = WithoutPacking(path);
  const size_t name = stem.rfind('/') == absl::string_view::npos ? 0 : stem.rfind('/') + 1;
  const size_t dot = stem.rfind('.');
  if (dot != absl::string_view::npos && dot > name) stem = stem.substr(0, dot);
  return absl::StrCat("eps data make ", kind, " ", Quoted(path),
                      " --tokenizer=DIR --out=", Quoted(absl::StrCat(stem, ".epsd")));
}

absl::Status CheckTextForm(absl::string_view bytes, const std::string& path,
                           const std::string& key) {
  if (const Form* form = BinaryFormOf(bytes, path)) {
    return Refusal(absl::StrCat("is ", form->name), NeedUnpacked(*form, path), path, key);
  }
  if (absl::EndsWithIgnoreCase(path, ".txt")) return absl::OkStatus();
  constexpr absl::string_view kOrRename =
      "\n(to train on the bytes as they are, rename it to .txt)";
  if (EndsWithAny(path, {".jsonl", ".ndjson", ".json"}) || BeginsWithJsonObject(bytes)) {
    return Refusal("is JSON", absl::StrCat(NeedMade("jsonl", path), kOrRename), path, key);
  }
  if (EndsWithAny(path, {".csv", ".tsv"})) {
    return Refusal("is CSV", absl::StrCat(NeedMade("csv", path), kOrRename), path, key);
  }
  return absl::OkStatus();
}

absl::Status CheckBinForm(absl::string_view bytes, uint32_t vocab_size, const std::string& path,
                          const std::string& key) {
  if (const Form* form = BinaryFormOf(bytes, path)) {
    const std::string need =
        form->name == kEpsd ? NeedUnpacked(*form, path) : std::string(kNeedBin);
    return Refusal(absl::StrCat("is ", form->name), need, path, key);
  }
  if (bytes.size() % 2 != 0) {
    return Refusal(absl::StrCat("has ", bytes.size(), " bytes"),
                   "a .bin file of uint16 ids has an even number", path, key);
  }
  if (LooksWiderThanUint16(bytes)) {
    return Refusal("seems to hold uint32 or uint64 ids, because every second uint16 is 0 or small",
                   kNeedBin, path, key);
  }
  if (vocab_size > kUint16Ids) {
    return Refusal(
        "holds uint16 ids",
        absl::StrCat("the model's vocabulary has ", vocab_size,
                     " ids (vocab_size of model.path), which uint16 cannot hold; make an .epsd "
                     "file of the text itself (eps data make)"),
        path, key);
  }
  return absl::OkStatus();
}

}  // namespace eps
