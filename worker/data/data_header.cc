#include "worker/data/data_header.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/checksum.h"
#include "base/exit_code.h"
#include "base/job/keys.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

constexpr uint32_t kVersion = 1;
constexpr uint64_t kAlignment = 4096;
constexpr size_t kDigestAt = 16;
constexpr size_t kTextAt = 48;
constexpr uint64_t kMaxText = kDataHeaderBytes - kTextAt;
constexpr uint64_t kMaxU16Vocabulary = 1 << 16;
// Bounds under which no product below overflows uint64.
constexpr uint64_t kMaxSamples = uint64_t{1} << 36;
constexpr uint64_t kMaxSeqLen = uint64_t{1} << 24;
constexpr uint64_t kMaxVocabulary = uint64_t{1} << 31;  // ids are int32 in a micro-batch
constexpr uint64_t kMaxImageSide = 1 << 13;
constexpr uint64_t kMaxBytes = uint64_t{1} << 62;

struct TypeInfo {
  DataType type;
  absl::string_view name;
  uint64_t bytes;
};
constexpr std::array<TypeInfo, 7> kTypes = {{{DataType::kU8, "u8", 1},
                                             {DataType::kU16, "u16", 2},
                                             {DataType::kU32, "u32", 4},
                                             {DataType::kU64, "u64", 8},
                                             {DataType::kI32, "i32", 4},
                                             {DataType::kF32, "f32", 4},
                                             {DataType::kBit, "bit", 0}}};

// A column that a kind may have, in the order of the file.
struct ColumnRule {
  DataKind kind;
  absl::string_view name;
  std::vector<DataType> types;
  bool per_token;
};
const std::vector<ColumnRule>& ColumnRules() {
  static const auto* const rules = new std::vector<ColumnRule>{
      {DataKind::kStream, "tokens", {DataType::kU16, DataType::kU32}, true},
      {DataKind::kStream, "document_ends", {DataType::kU64}, false},
      {DataKind::kRows, "tokens", {DataType::kU16, DataType::kU32}, true},
      {DataKind::kRows, "loss_mask", {DataType::kBit}, true},
      {DataKind::kRows, "document_starts", {DataType::kBit}, true},
      {DataKind::kRows, "lengths", {DataType::kU32}, false},
      {DataKind::kRows, "token_types", {DataType::kU8}, true},
      {DataKind::kRows, "labels", {DataType::kI32, DataType::kF32}, false},
      {DataKind::kRows, "pixels", {DataType::kU8}, false}};
  return *rules;
}
const ColumnRule* RuleOf(DataKind kind, absl::string_view name) {
  for (const ColumnRule& rule : ColumnRules()) {
    if (rule.kind == kind && rule.name == name) return &rule;
  }
  return nullptr;
}

uint32_t ReadU32(absl::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

std::string HeaderDigest(absl::string_view header) {
  Sha256 hash;
  hash.Update(header.substr(0, kDigestAt));
  hash.Update(std::string(kTextAt - kDigestAt, '\0'));
  hash.Update(header.substr(kTextAt, kMaxText));
  return ToHex(hash.Finish());
}

bool IsSha256(absl::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

// Reads one header and keeps the first error.
class HeaderReader {
 public:
  HeaderReader(absl::string_view bytes, uint64_t file_bytes, const std::string& file)
      : bytes_(bytes), file_bytes_(file_bytes), file_(file) {}

  absl::StatusOr<DataHeader> Read() {
    EPS_RETURN_IF_ERROR(CheckPrefix());
    const json fields = json::parse(bytes_.substr(kTextAt, ReadU32(bytes_, 12)), nullptr,
                                    /*allow_exceptions=*/false);
    EPS_RETURN_IF_ERROR(ReadFields(fields));
    EPS_RETURN_IF_ERROR(CheckSizes());
    EPS_RETURN_IF_ERROR(CheckColumns());
    EPS_RETURN_IF_ERROR(CheckPlaces());
    return header_;
  }

 private:
  template <class... T>
  absl::Status Refuse(const T&... what) const {
    return WithExitCode(
        absl::InvalidArgumentError(absl::StrCat("data file ", file_, ": header: ", what...)),
        ExitCode::kDataInvalid);
  }

  absl::Status CheckPrefix() const;
  absl::Status ReadFields(const json& fields);
  absl::Status ReadColumn(const json& fields);
  absl::Status ReadImage(const json& fields);
  absl::Status ReadMasking(const json& fields);
  absl::Status CheckSizes() const;
  absl::Status CheckColumns() const;
  absl::Status CheckColumn(const DataColumn& column, const ColumnRule& rule) const;
  absl::Status CheckPlaces() const;

  // Refuses an object that has other keys.
  absl::Status CheckKeys(const json& object, const std::string& what,
                         const std::vector<absl::string_view>& keys) const {
    bool same = object.is_object() && object.size() == keys.size();
    for (const absl::string_view key : keys) same = same && object.contains(std::string(key));
    if (same) return absl::OkStatus();
    return Refuse(what, " is not an object with the keys ", absl::StrJoin(keys, ", "));
  }
  absl::Status ReadNumber(const json& object, const char* key, uint64_t limit,
                          uint64_t* value) const {
    const json& found = object[key];
    if (!found.is_number_unsigned() || found.get<uint64_t>() > limit) {
      return Refuse(key, " is ", found.dump().substr(0, 40), "; it is an integer of at most ",
                    limit);
    }
    *value = found.get<uint64_t>();
    return absl::OkStatus();
  }
  absl::Status ReadText(const json& object, const char* key, std::string* text) const {
    if (!object[key].is_string()) return Refuse(key, " is no text");
    *text = object[key].get<std::string>();
    return absl::OkStatus();
  }

  const absl::string_view bytes_;
  const uint64_t file_bytes_;
  const std::string& file_;
  DataHeader header_;
};

absl::Status HeaderReader::CheckPrefix() const {
  if (bytes_.substr(0, kDataMagic.size()) != kDataMagic) {
    return Refuse("begins with \"", absl::CEscape(bytes_.substr(0, kDataMagic.size())),
                  "\"; an .epsd file begins with \"", kDataMagic, "\"");
  }
  if (bytes_.size() < kDataHeaderBytes) {
    return Refuse("the file has ", bytes_.size(), " bytes; a header has ", kDataHeaderBytes);
  }
  if (ReadU32(bytes_, 8) != kVersion) {
    return Refuse("version ", ReadU32(bytes_, 8), "; this program reads version ", kVersion);
  }
  const std::string found = HeaderDigest(bytes_);
  const std::string stored = absl::BytesToHexString(bytes_.substr(kDigestAt, kTextAt - kDigestAt));
  if (found != stored) {
    return Refuse("damaged: it has SHA-256 ", found, ", its bytes 16 to 47 say ", stored);
  }
  if (ReadU32(bytes_, 12) > kMaxText) {
    return Refuse("the text has ", ReadU32(bytes_, 12), " bytes; ", kMaxText, " fit");
  }
  return absl::OkStatus();
}

absl::Status HeaderReader::ReadFields(const json& fields) {
  std::vector<absl::string_view> keys = {"kind",      "samples", "seq_len",   "vocab_size",
                                         "tokenizer", "columns", "provenance"};
  for (const char* optional : {"image", "masking"}) {
    if (fields.is_object() && fields.contains(optional)) keys.emplace_back(optional);
  }
  EPS_RETURN_IF_ERROR(CheckKeys(fields, "the text", keys));
  std::string kind;
  EPS_RETURN_IF_ERROR(ReadText(fields, "kind", &kind));
  if (kind != "stream" && kind != "rows") {
    return Refuse("kind \"", absl::CEscape(kind), "\"; the kinds are stream and rows");
  }
  header_.kind = kind == "rows" ? DataKind::kRows : DataKind::kStream;
  uint64_t seq_len = 0;
  EPS_RETURN_IF_ERROR(ReadNumber(fields, "samples", kMaxSamples, &header_.samples));
  EPS_RETURN_IF_ERROR(ReadNumber(fields, "seq_len", kMaxSeqLen, &seq_len));
  EPS_RETURN_IF_ERROR(ReadNumber(fields, "vocab_size", kMaxVocabulary, &header_.vocab_size));
  EPS_RETURN_IF_ERROR(ReadText(fields, "tokenizer", &header_.tokenizer));
  header_.seq_len = static_cast<uint32_t>(seq_len);
  if (!fields["provenance"].is_object()) return Refuse("provenance is no object");
  if (!fields["columns"].is_array()) return Refuse("columns is no list");
  for (const json& column : fields["columns"]) EPS_RETURN_IF_ERROR(ReadColumn(column));
  if (fields.contains("image")) EPS_RETURN_IF_ERROR(ReadImage(fields["image"]));
  return fields.contains("masking") ? ReadMasking(fields["masking"]) : absl::OkStatus();
}

absl::Status HeaderReader::ReadColumn(const json& fields) {
  EPS_RETURN_IF_ERROR(
      CheckKeys(fields, "a column", {"name", "dtype", "offset", "bytes", "sha256"}));
  DataColumn column;
  std::string type;
  EPS_RETURN_IF_ERROR(ReadText(fields, "name", &column.name));
  EPS_RETURN_IF_ERROR(ReadText(fields, "dtype", &type));
  EPS_RETURN_IF_ERROR(ReadNumber(fields, "offset", kMaxBytes, &column.offset));
  EPS_RETURN_IF_ERROR(ReadNumber(fields, "bytes", kMaxBytes, &column.bytes));
  EPS_RETURN_IF_ERROR(ReadText(fields, "sha256", &column.sha256));
  const auto found = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const TypeInfo& info) { return info.name == type; });
  if (found == kTypes.end()) {
    return Refuse("column ", absl::CEscape(column.name), " has the dtype \"", absl::CEscape(type),
                  "\"");
  }
  column.type = found->type;
  header_.columns.push_back(std::move(column));
  return absl::OkStatus();
}

absl::Status HeaderReader::ReadImage(const json& fields) {
  EPS_RETURN_IF_ERROR(CheckKeys(fields, "image", {"channels", "height", "width", "mean", "std"}));
  uint64_t sides[3] = {};
  const char* const names[3] = {"channels", "height", "width"};
  for (int i = 0; i < 3; ++i) {
    EPS_RETURN_IF_ERROR(ReadNumber(fields, names[i], kMaxImageSide, &sides[i]));
    if (sides[i] == 0) return Refuse("image: ", names[i], " is 0");
  }
  DataImage image;
  image.channels = static_cast<uint32_t>(sides[0]);
  image.height = static_cast<uint32_t>(sides[1]);
  image.width = static_cast<uint32_t>(sides[2]);
  for (const auto& [name, values] : {std::pair{"mean", &image.mean}, {"std", &image.std}}) {
    const json& list = fields[name];
    bool good = list.is_array() && list.size() == image.channels;
    for (size_t i = 0; good && i < list.size(); ++i) {
      good = list[i].is_number() && (values == &image.mean || list[i].get<double>() > 0);
      if (good) values->push_back(list[i].get<double>());
    }
    if (!good) return Refuse("image needs one mean and one positive std for each channel");
  }
  header_.image = std::move(image);
  return absl::OkStatus();
}

absl::Status HeaderReader::ReadMasking(const json& fields) {
  EPS_RETURN_IF_ERROR(CheckKeys(fields, "masking", {"mask_token", "special_tokens"}));
  DataMasking masking;
  const uint64_t most = header_.vocab_size > 0 ? header_.vocab_size - 1 : 0;
  uint64_t id = 0;
  EPS_RETURN_IF_ERROR(ReadNumber(fields, "mask_token", most, &id));
  masking.mask_token = static_cast<uint32_t>(id);
  const json& list = fields["special_tokens"];
  bool good = list.is_array() && list.size() <= kMaxSpecialTokens;
  for (size_t i = 0; good && i < list.size(); ++i) {
    good = list[i].is_number_unsigned() && list[i].get<uint64_t>() <= most &&
           (i == 0 || list[i].get<uint64_t>() > masking.special_tokens.back());
    if (good) masking.special_tokens.push_back(list[i].get<uint32_t>());
  }
  if (!good) {
    return Refuse("special_tokens is no list of at most ", kMaxSpecialTokens,
                  " ids of the vocabulary in increasing order");
  }
  header_.masking = std::move(masking);
  return absl::OkStatus();
}

absl::Status HeaderReader::CheckSizes() const {
  if (header_.samples == 0) return Refuse("samples is 0; it is at least 1");
  if (!header_.tokenizer.empty() && !IsSha256(header_.tokenizer)) {
    return Refuse("tokenizer \"", absl::CEscape(header_.tokenizer), "\" is no SHA-256");
  }
  const DataColumn* const tokens = header_.Find("tokens");
  if (header_.kind == DataKind::kStream && (tokens == nullptr || !header_.Find("document_ends"))) {
    return Refuse("a stream has the columns tokens and document_ends");
  }
  if (tokens == nullptr && header_.Find("pixels") == nullptr) {
    return Refuse("rows have the column tokens or pixels");
  }
  if ((tokens != nullptr && header_.kind == DataKind::kRows) != (header_.seq_len > 0)) {
    return Refuse("seq_len is ", header_.seq_len, "; it is 1 to 2^24 for rows of tokens, else 0");
  }
  if ((tokens != nullptr) != (header_.vocab_size > 0)) {
    return Refuse("vocab_size is ", header_.vocab_size, "; it is at least 1 with tokens, else 0");
  }
  const DataType type = header_.vocab_size <= kMaxU16Vocabulary ? DataType::kU16 : DataType::kU32;
  if (tokens != nullptr && tokens->type != type) {
    return Refuse("tokens are ", NameOf(tokens->type), "; a vocabulary of ", header_.vocab_size,
                  " ids is stored as ", NameOf(type));
  }
  if (header_.image.has_value() != (header_.Find("pixels") != nullptr)) {
    return Refuse("image and the column pixels need each other");
  }
  return absl::OkStatus();
}

absl::Status HeaderReader::CheckColumns() const {
  const ColumnRule* last = nullptr;
  for (const DataColumn& column : header_.columns) {
    const ColumnRule* const rule = RuleOf(header_.kind, column.name);
    if (rule == nullptr || rule <= last) {
      std::vector<absl::string_view> names;
      for (const ColumnRule& known : ColumnRules()) {
        if (known.kind == header_.kind) names.push_back(known.name);
      }
      return Refuse("column ", absl::CEscape(column.name), " is unknown or not in its place; ",
                    "there may be ", absl::StrJoin(names, ", "), ", in this order");
    }
    last = rule;
    EPS_RETURN_IF_ERROR(CheckColumn(column, *rule));
  }
  return absl::OkStatus();
}

absl::Status HeaderReader::CheckColumn(const DataColumn& column, const ColumnRule& rule) const {
  if (std::find(rule.types.begin(), rule.types.end(), column.type) == rule.types.end()) {
    return Refuse("column ", column.name, " is ", NameOf(column.type), "; it may be ",
                  absl::StrJoin(rule.types, " or ", [](std::string* out, DataType type) {
                    absl::StrAppend(out, NameOf(type));
                  }));
  }
  if (!IsSha256(column.sha256)) return Refuse("column ", column.name, " has no SHA-256");
  const bool about_tokens = rule.per_token || column.name == "lengths";
  if (header_.kind == DataKind::kRows && about_tokens && header_.seq_len == 0) {
    return Refuse("column ", column.name, " needs the column tokens");
  }
  uint64_t expected = 0;
  if (header_.kind == DataKind::kRows) {
    const uint64_t row = header_.RowBytes(column);
    if (row > kMaxBytes / header_.samples) return Refuse("column ", column.name, " is too large");
    expected = row * header_.samples;
  } else if (!rule.per_token) {
    expected = ElementBytes(column.type) * header_.samples;
  } else {
    const uint64_t width = ElementBytes(column.type);
    if (column.bytes > 0 && column.bytes % width == 0) return absl::OkStatus();
    return Refuse("column ", column.name, " has ", column.bytes, " bytes of ", NameOf(column.type));
  }
  if (column.bytes == expected) return absl::OkStatus();
  return Refuse("column ", column.name, " has ", column.bytes, " bytes; ", header_.samples,
                " samples have ", expected);
}

absl::Status HeaderReader::CheckPlaces() const {
  uint64_t end = kDataHeaderBytes;
  for (const DataColumn& column : header_.columns) {
    const uint64_t place = (end + kAlignment - 1) / kAlignment * kAlignment;
    if (column.offset != place) {
      return Refuse("column ", column.name, " begins at ", column.offset, "; its place is ", place);
    }
    end = place + column.bytes;
  }
  if (end == file_bytes_) return absl::OkStatus();
  return Refuse("the file has ", file_bytes_, " bytes; its columns end at ", end);
}

}  // namespace

uint64_t ElementBytes(DataType type) { return kTypes[static_cast<size_t>(type)].bytes; }

absl::string_view NameOf(DataType type) { return kTypes[static_cast<size_t>(type)].name; }

const DataColumn* DataHeader::Find(absl::string_view name) const {
  for (const DataColumn& column : columns) {
    if (column.name == name) return &column;
  }
  return nullptr;
}

uint64_t DataHeader::RowBytes(const DataColumn& column) const {
  if (column.type == DataType::kBit) return (uint64_t{seq_len} + 7) / 8;
  if (column.name == "pixels") return image->bytes();
  const ColumnRule* const rule = RuleOf(DataKind::kRows, column.name);
  return ElementBytes(column.type) * (rule != nullptr && rule->per_token ? seq_len : 1);
}

absl::StatusOr<DataHeader> ParseDataHeader(absl::string_view bytes, uint64_t file_bytes,
                                           const std::string& file) {
  return HeaderReader(bytes, file_bytes, file).Read();
}

}  // namespace eps
