#include "planner/hardware.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/nearest_name.h"
#include "base/status_macros.h"
#include "planner/hardware_schema.h"
#include "planner/quantity_text.h"
#include "yaml-cpp/yaml.h"

namespace eps::planner {
namespace {

constexpr uint32_t kMaxCount = 1u << 20;
constexpr size_t kMaxKinds = 64;
constexpr size_t kMaxYamlBytes = 1u << 20;
constexpr std::pair<const char*, StorageDeviceKind> kStorageKinds[] = {
    {"nvme", StorageDeviceKind::kNvme}, {"csd", StorageDeviceKind::kCsd}};

absl::Status ParseScalar(absl::string_view text, Bytes* value) {
  EPS_ASSIGN_OR_RETURN(*value, ParseBytes(text));
  return absl::OkStatus();
}
absl::Status ParseScalar(absl::string_view text, BytesPerSecond* value) {
  EPS_ASSIGN_OR_RETURN(*value, ParseBytesPerSecond(text));
  return absl::OkStatus();
}
absl::Status ParseScalar(absl::string_view text, FlopsPerSecond* value) {
  EPS_ASSIGN_OR_RETURN(*value, ParseFlopsPerSecond(text));
  return absl::OkStatus();
}
absl::Status ParseScalar(absl::string_view text, Seconds* value) {
  EPS_ASSIGN_OR_RETURN(*value, ParseSeconds(text));
  return absl::OkStatus();
}
absl::Status ParseScalar(absl::string_view text, DollarsPerSecond* value) {
  EPS_ASSIGN_OR_RETURN(*value, ParsePrice(text));
  return absl::OkStatus();
}
absl::Status ParseScalar(absl::string_view text, std::string* value) {
  if (text.empty()) return absl::InvalidArgumentError("found nothing, expected text");
  *value = std::string(text);
  return absl::OkStatus();
}
absl::Status ParseScalar(absl::string_view text, uint32_t* value) {
  if (absl::SimpleAtoi(text, value) && *value >= 1 && *value <= kMaxCount) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("found \"", text, "\", expected a whole number from 1 to ", kMaxCount));
}
absl::Status ParseScalar(absl::string_view text, bool* value) {
  if (text != "true" && text != "false") {
    return absl::InvalidArgumentError(absl::StrCat("found \"", text, "\", expected true or false"));
  }
  *value = text == "true";
  return absl::OkStatus();
}
// A share: above 0, at most 1.
absl::Status ParseScalar(absl::string_view text, double* value) {
  if (absl::SimpleAtod(text, value) && *value > 0 && *value <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("found \"", text, "\", expected a number above 0 and at most 1"));
}
absl::Status ParseScalar(absl::string_view text, std::optional<double>* value) {
  return ParseScalar(text, &value->emplace());
}
absl::Status ParseScalar(absl::string_view text, StorageDeviceKind* value) {
  for (const auto& [name, kind] : kStorageKinds) {
    if (text != name) continue;
    *value = kind;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("found \"", text, "\", expected nvme or csd"));
}

std::string ScalarText(const std::string& value) {
  YAML::Emitter emitter;
  emitter << value;
  return emitter.c_str();
}
std::string ScalarText(uint32_t value) { return absl::StrCat(value); }
std::string ScalarText(bool value) { return value ? "true" : "false"; }
std::string ScalarText(double value) { return ExactText(value); }
std::string ScalarText(const std::optional<double>& value) { return ExactText(*value); }
std::string ScalarText(StorageDeviceKind value) {
  return kStorageKinds[static_cast<int>(value)].first;
}
template <int kB, int kF, int kS, int kD>
std::string ScalarText(Quantity<kB, kF, kS, kD> value) {
  return ExactText(value);
}

// Reads one map of the YAML and keeps the first error.
class MapReader {
 public:
  MapReader(YAML::Node map, std::string path, std::string origin)
      : map_(std::move(map)), path_(std::move(path)), origin_(std::move(origin)) {}

  template <class T>
  static absl::Status Read(const YAML::Node& map, const std::string& path,
                           const std::string& origin, T* object) {
    MapReader reader(map, path, origin);
    if (!map.IsMap()) return reader.Error(map, "expected keys and values");
    ForEachField(object, &reader);
    return reader.Finish();
  }

  template <class T>
  void operator()(const char* key, T* value, Presence presence, const char* /*meaning*/) {
    known_.emplace_back(key);
    if (!status_.ok()) return;
    const YAML::Node node = map_[key];
    if (!node.IsDefined()) {
      if (presence == Presence::kRequired) status_ = Error(map_, absl::StrCat(key, " is missing"));
      return;
    }
    status_ = ReadValue(node, absl::StrCat(path_, path_.empty() ? "" : ".", key), value);
  }

 private:
  template <class T>
  absl::Status ReadValue(const YAML::Node& node, const std::string& path, T* value) {
    if (!node.IsScalar()) return Error(node, absl::StrCat(path, ": expected a single value"));
    const absl::Status status = ParseScalar(node.Scalar(), value);
    if (status.ok()) return status;
    return Error(node, absl::StrCat(path, ": ", status.message()));
  }
  absl::Status ReadValue(const YAML::Node& node, const std::string& path, Device* value) {
    return Read(node, path, origin_, value);
  }
  absl::Status ReadValue(const YAML::Node& node, const std::string& path,
                         std::optional<StorageDevices>* value) {
    return Read(node, path, origin_, &value->emplace());
  }
  template <class T>
  absl::Status ReadValue(const YAML::Node& node, const std::string& path, std::vector<T>* value) {
    if (!node.IsSequence() || node.size() == 0 || node.size() > kMaxKinds) {
      return Error(node, absl::StrCat(path, ": expected a list of 1 to ", kMaxKinds, " entries"));
    }
    for (size_t i = 0; i < node.size(); ++i) {
      EPS_RETURN_IF_ERROR(
          Read(node[i], absl::StrCat(path, "[", i, "]"), origin_, &value->emplace_back()));
    }
    return absl::OkStatus();
  }

  // Reports unknown and repeated keys before missing ones, because a misspelt key is also a missing
  // one.
  absl::Status Finish() const {
    std::set<std::string> seen;
    for (const auto& entry : map_) {
      if (!entry.first.IsScalar()) return Error(entry.first, "expected a key");
      const std::string& key = entry.first.Scalar();
      if (!seen.insert(key).second) return Error(entry.first, absl::StrCat(key, " appears twice"));
      bool known = false;
      for (const std::string& name : known_) known = known || name == key;
      if (known) continue;
      const std::string nearest = NearestName(key, known_);
      return Error(entry.first,
                   absl::StrCat("unknown key ", key, nearest.empty() ? "" : ", did you mean ",
                                nearest, "; known: ", absl::StrJoin(known_, ", ")));
    }
    return status_;
  }

  absl::Status Error(const YAML::Node& node, absl::string_view what) const {
    const int line = node.Mark().line;
    return absl::InvalidArgumentError(absl::StrCat(origin_, line < 0 ? "" : ":",
                                                   line < 0 ? "" : absl::StrCat(line + 1), ": ",
                                                   path_, path_.empty() ? "" : ": ", what));
  }

  const YAML::Node map_;
  const std::string path_;  // path of the map in the document
  const std::string origin_;
  std::vector<std::string> known_;
  absl::Status status_;
};

// Writes one map and omits optional fields that have their default.
class MapWriter {
 public:
  MapWriter(std::string* yaml, std::string indent, std::string first_indent)
      : yaml_(yaml), indent_(std::move(indent)), next_indent_(std::move(first_indent)) {}

  template <class T>
  void operator()(const char* key, T* value, Presence presence, const char* /*meaning*/) {
    if (presence == Presence::kOptional && *value == T()) return;
    absl::StrAppend(yaml_, Indent(), key, ": ", ScalarText(*value), "\n");
  }
  void operator()(const char* key, double* value, Presence /*presence*/, const char* /*meaning*/) {
    absl::StrAppend(yaml_, Indent(), key, ": ", ScalarText(*value), "\n");
  }
  void operator()(const char* key, BytesPerSecond* value, Presence /*presence*/,
                  const char* /*meaning*/) {
    if (*value == kNoLimit || *value == BytesPerSecond()) return;
    absl::StrAppend(yaml_, Indent(), key, ": ", ScalarText(*value), "\n");
  }
  void operator()(const char* key, Device* value, Presence /*presence*/, const char* /*meaning*/) {
    Map(key, value);
  }
  void operator()(const char* key, std::optional<StorageDevices>* value, Presence /*presence*/,
                  const char* /*meaning*/) {
    if (value->has_value()) Map(key, &**value);
  }
  template <class T>
  void operator()(const char* key, std::vector<T>* value, Presence /*presence*/,
                  const char* /*meaning*/) {
    if (value->empty()) return;
    absl::StrAppend(yaml_, Indent(), key, ":\n");
    for (T& item : *value) {
      MapWriter writer(yaml_, indent_ + "    ", indent_ + "  - ");
      ForEachField(&item, &writer);
    }
  }

 private:
  template <class T>
  void Map(const char* key, T* value) {
    absl::StrAppend(yaml_, Indent(), key, ":\n");
    MapWriter writer(yaml_, indent_ + "  ", indent_ + "  ");
    ForEachField(value, &writer);
  }
  std::string Indent() { return std::exchange(next_indent_, indent_); }

  std::string* const yaml_;
  const std::string indent_;
  std::string next_indent_;
};

// Returns the notation of a value by its type.
const char* FormText(const Bytes&) { return "bytes, `16GB`"; }
const char* FormText(const BytesPerSecond&) { return "bytes per second, `12GB/s`"; }
const char* FormText(const FlopsPerSecond&) { return "operations per second, `15.7TFLOP/s`"; }
const char* FormText(const Seconds&) { return "time, `50us`"; }
const char* FormText(const DollarsPerSecond&) { return "price, `3.5$/h`"; }
const char* FormText(const std::string&) { return "text"; }
const char* FormText(const uint32_t&) { return "whole number from 1"; }
const char* FormText(const bool&) { return "`true` or `false`"; }
const char* FormText(const double&) { return "number above 0, at most 1"; }
const char* FormText(const std::optional<double>&) { return FormText(double()); }
const char* FormText(const StorageDeviceKind&) { return "`nvme` or `csd`"; }

// Returns the text for the default of an optional key.
template <class T>
std::string DefaultText(const T& value) {
  return absl::StrCat("`", ScalarText(value), "`");
}
std::string DefaultText(const BytesPerSecond& value) {
  return value == kNoLimit ? "no limit" : "not given";
}
std::string DefaultText(const std::optional<double>& /*value*/) { return "not given"; }
std::string DefaultText(const Bytes& /*value*/) { return "not given"; }
std::string DefaultText(const FlopsPerSecond& /*value*/) { return "not given"; }
std::string DefaultText(const DollarsPerSecond& /*value*/) { return "not given"; }

// Writes one table of the reference page, followed by the tables of the objects within it.
class TableWriter {
 public:
  explicit TableWriter(std::string path) : path_(std::move(path)) {}

  template <class T>
  static std::string Tables(const std::string& path, T* object) {
    TableWriter writer(path);
    ForEachField(object, &writer);
    return absl::StrCat("## ", path.empty() ? "The file" : absl::StrCat("`", path, "`"),
                        "\n\n| key | value | required, or default | meaning |\n"
                        "| --- | --- | --- | --- |\n",
                        writer.lines_, "\n", writer.inner_);
  }

  template <class T>
  void operator()(const char* key, T* value, Presence presence, const char* meaning) {
    const bool required = presence == Presence::kRequired;
    Line(key, FormText(*value), required ? "required" : DefaultText(*value), meaning);
  }
  void operator()(const char* key, Device* value, Presence presence, const char* meaning) {
    Object(key, "", value, presence, meaning);
  }
  void operator()(const char* key, std::optional<StorageDevices>* /*value*/, Presence presence,
                  const char* meaning) {
    StorageDevices storage;
    Object(key, "", &storage, presence, meaning);
  }
  template <class T>
  void operator()(const char* key, std::vector<T>* /*value*/, Presence presence,
                  const char* meaning) {
    T item;
    Object(key, "[]", &item, presence, meaning);
  }

 private:
  template <class T>
  void Object(const char* key, const char* suffix, T* value, Presence presence,
              const char* meaning) {
    const std::string path = absl::StrCat(path_, path_.empty() ? "" : ".", key, suffix);
    Line(key, absl::StrCat(*suffix == '\0' ? "" : "list of ", "`", path, "`"),
         presence == Presence::kRequired ? "required" : "none", meaning);
    inner_ += Tables(path, value);
  }
  void Line(absl::string_view key, absl::string_view form, absl::string_view presence,
            absl::string_view meaning) {
    absl::StrAppend(&lines_, "| `", key, "` | ", form, " | ", presence, " | ", meaning, " |\n");
  }

  const std::string path_;
  std::string lines_;
  std::string inner_;
};

FlopsPerSecond StatedPeak(const Device& device, Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return device.peak_fp32;
    case Precision::kBf16:
      return device.peak_bf16;
    case Precision::kCmp:
      return device.peak_fp16;
  }
  return device.peak_fp32;
}

constexpr char kReferenceHead[] = R"(# Hardware files

`eps plan --schema` prints this page; a test compares the two. A hardware file describes the
machines that `eps plan --hardware=FILE` plans for ([planning](../planning.md)): workers, which
compute, and servers, which hold the state.

The file is YAML. Every quantity carries its unit: a decimal number, a prefix (k, M, G, T, P; or Ki,
Mi, Gi, Ti, Pi) and `B`, `B/s` or `FLOP/s`; times are in `s`, `ms` or `us`, prices in `$/h`. Numbers
must be finite and positive; times and prices may be zero. An unknown key, a repeated key and a
quantity without its unit are refused with their line number (exit code 64).

)";

}  // namespace

FlopsPerSecond Device::peak(Precision precision) const {
  const FlopsPerSecond stated = StatedPeak(*this, precision);
  return stated > FlopsPerSecond(0) ? stated : peak_fp32;
}

FlopsPerSecond Device::products(Precision precision) const {
  const bool in_16_bits =
      precision != Precision::kFp32 && StatedPeak(*this, precision) > FlopsPerSecond(0);
  return (in_16_bits ? efficiency_16bit.value_or(efficiency) : efficiency) * peak(precision);
}

bool Hardware::has_storage() const {
  return std::all_of(servers.begin(), servers.end(),
                     [](const ServerKind& server) { return server.storage.has_value(); });
}

bool Hardware::has_updating_storage() const {
  return std::all_of(servers.begin(), servers.end(), [](const ServerKind& server) {
    return server.storage.has_value() && server.storage->kind == StorageDeviceKind::kCsd &&
           server.storage->update > BytesPerSecond(0);
  });
}

const CodecRates* Hardware::CodecOrNull(absl::string_view name) const {
  const auto it = std::find_if(codecs.begin(), codecs.end(),
                               [&](const CodecRates& codec) { return codec.name == name; });
  return it == codecs.end() ? nullptr : &*it;
}

uint32_t Hardware::worker_count() const {
  uint32_t count = 0;
  for (const WorkerKind& worker : workers) count += worker.count;
  return count;
}

uint32_t Hardware::server_count() const {
  uint32_t count = 0;
  for (const ServerKind& server : servers) count += server.count;
  return count;
}

absl::StatusOr<Hardware> ParseHardware(absl::string_view yaml, absl::string_view origin) {
  if (yaml.size() > kMaxYamlBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": ", yaml.size(), " bytes; at most ", kMaxYamlBytes, " are allowed"));
  }
  Hardware hardware;
  try {
    const YAML::Node document = YAML::Load(std::string(yaml));
    EPS_RETURN_IF_ERROR(MapReader::Read(document, "", std::string(origin), &hardware));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": ", error.what()));
  }
  return hardware;
}

std::string HardwareToYaml(const Hardware& hardware) {
  std::string yaml;
  Hardware copy = hardware;  // the visitors of the schema take mutable fields
  MapWriter writer(&yaml, "", "");
  ForEachField(&copy, &writer);
  return yaml;
}

std::string HardwareReference() {
  Hardware hardware;
  std::string page = absl::StrCat(kReferenceHead, TableWriter::Tables("", &hardware));
  absl::StrAppend(&page,
                  "## Examples\n\n"
                  "`--hardware=NAME` selects an example; `eps plan --example=NAME` prints it.\n\n"
                  "| name | machines | where the numbers come from |\n| --- | --- | --- |\n");
  for (const std::string& name : HardwareExamples()) {
    const absl::StatusOr<Hardware> example = ParseHardware(*HardwareExample(name), name);
    EPS_CHECK_MSG(example.ok(), example.status());
    absl::StrAppend(&page, "| `", name, "` | ", example->name, " | ", example->source, " |\n");
  }
  return page;
}

}  // namespace eps::planner
