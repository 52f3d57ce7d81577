#include "planner/hardware.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/config.h"
#include "common/status_macros.h"
#include "planner/hardware_examples.h"
#include "planner/quantity_text.h"
#include "yaml-cpp/yaml.h"

namespace eps::planner {
namespace {

constexpr uint32_t kMaxCount = 1u << 20;
constexpr size_t kMaxKinds = 64;
constexpr size_t kMaxYamlBytes = 1u << 20;
constexpr std::pair<const char*, StorageDeviceKind> kStorageKinds[] = {
    {"nvme", StorageDeviceKind::kNvme}, {"csd", StorageDeviceKind::kCsd}};

enum class Presence { kRequired, kOptional };

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
  if (text.empty()) return absl::InvalidArgumentError("found nothing, expected a text");
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
std::string ScalarText(double value) { return absl::StrFormat("%.17g", value); }
std::string ScalarText(StorageDeviceKind value) {
  return kStorageKinds[static_cast<int>(value)].first;
}
template <int kB, int kF, int kS, int kD>
std::string ScalarText(Quantity<kB, kF, kS, kD> value) {
  return ExactText(value);
}

// The schema: every object calls `visit` with each of its keys, its place and whether it has to be
// there; it serves reading and writing.
template <class Visitor>
void ForEachField(Device* d, Visitor* visit) {
  (*visit)("name", &d->name, Presence::kRequired);
  (*visit)("host", &d->host, Presence::kOptional);
  (*visit)("memory", &d->memory, Presence::kRequired);
  (*visit)("peak", &d->peak, Presence::kRequired);
  (*visit)("efficiency", &d->efficiency, Presence::kOptional);
  (*visit)("to_device", &d->to_device, Presence::kOptional);
  (*visit)("from_device", &d->from_device, Presence::kOptional);
  (*visit)("stage_overhead", &d->stage_overhead, Presence::kOptional);
}

template <class Visitor>
void ForEachField(WorkerKind* w, Visitor* visit) {
  (*visit)("name", &w->name, Presence::kRequired);
  (*visit)("count", &w->count, Presence::kOptional);
  (*visit)("device", &w->device, Presence::kRequired);
  (*visit)("memory", &w->memory, Presence::kRequired);
  (*visit)("receive", &w->receive, Presence::kRequired);
  (*visit)("send", &w->send, Presence::kRequired);
  (*visit)("latency", &w->latency, Presence::kOptional);
  (*visit)("encode", &w->encode, Presence::kRequired);
  (*visit)("decode", &w->decode, Presence::kRequired);
  (*visit)("price", &w->price, Presence::kOptional);
}

template <class Visitor>
void ForEachField(StorageDevices* s, Visitor* visit) {
  (*visit)("kind", &s->kind, Presence::kRequired);
  (*visit)("count", &s->count, Presence::kOptional);
  (*visit)("capacity", &s->capacity, Presence::kRequired);
  (*visit)("read", &s->read, Presence::kRequired);
  (*visit)("write", &s->write, Presence::kRequired);
  (*visit)("endurance", &s->endurance, Presence::kOptional);
  (*visit)("update", &s->update, Presence::kOptional);
  (*visit)("memory", &s->memory, Presence::kOptional);
}

template <class Visitor>
void ForEachField(ServerKind* s, Visitor* visit) {
  (*visit)("name", &s->name, Presence::kRequired);
  (*visit)("count", &s->count, Presence::kOptional);
  (*visit)("cores", &s->cores, Presence::kRequired);
  (*visit)("memory", &s->memory, Presence::kRequired);
  (*visit)("memory_bandwidth", &s->memory_bandwidth, Presence::kRequired);
  (*visit)("receive", &s->receive, Presence::kRequired);
  (*visit)("send", &s->send, Presence::kRequired);
  (*visit)("encode", &s->encode, Presence::kRequired);
  (*visit)("update", &s->update, Presence::kRequired);
  (*visit)("storage", &s->storage, Presence::kOptional);
  (*visit)("price", &s->price, Presence::kOptional);
}

template <class Visitor>
void ForEachField(CodecRates* c, Visitor* visit) {
  (*visit)("name", &c->name, Presence::kRequired);
  (*visit)("encode", &c->encode, Presence::kRequired);
  (*visit)("decode", &c->decode, Presence::kRequired);
}

template <class Visitor>
void ForEachField(Hardware* h, Visitor* visit) {
  (*visit)("name", &h->name, Presence::kRequired);
  (*visit)("source", &h->source, Presence::kRequired);
  (*visit)("one_machine", &h->one_machine, Presence::kOptional);
  (*visit)("workers", &h->workers, Presence::kRequired);
  (*visit)("servers", &h->servers, Presence::kRequired);
  (*visit)("codecs", &h->codecs, Presence::kOptional);
}

// Reads one map of the YAML. The first error stays.
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
  void operator()(const char* key, T* value, Presence presence) {
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
                         absl::optional<StorageDevices>* value) {
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

  // A key that is misspelt is one that is missing, too: what stands there is said first.
  absl::Status Finish() const {
    std::set<std::string> seen;
    for (const auto& entry : map_) {
      if (!entry.first.IsScalar()) return Error(entry.first, "expected a key");
      const std::string& key = entry.first.Scalar();
      if (!seen.insert(key).second) return Error(entry.first, absl::StrCat(key, " stands twice"));
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
  const std::string path_;  // of the map in the document
  const std::string origin_;
  std::vector<std::string> known_;
  absl::Status status_;
};

// Writes one map; optional fields that have their default are left out.
class MapWriter {
 public:
  MapWriter(std::string* yaml, std::string indent, std::string first_indent)
      : yaml_(yaml), indent_(std::move(indent)), next_indent_(std::move(first_indent)) {}

  template <class T>
  void operator()(const char* key, T* value, Presence presence) {
    if (presence == Presence::kOptional && *value == T()) return;
    absl::StrAppend(yaml_, Indent(), key, ": ", ScalarText(*value), "\n");
  }
  void operator()(const char* key, double* value, Presence /*presence*/) {
    absl::StrAppend(yaml_, Indent(), key, ": ", ScalarText(*value), "\n");
  }
  void operator()(const char* key, BytesPerSecond* value, Presence /*presence*/) {
    if (*value == kNoLimit || *value == BytesPerSecond()) return;
    absl::StrAppend(yaml_, Indent(), key, ": ", ScalarText(*value), "\n");
  }
  void operator()(const char* key, Device* value, Presence /*presence*/) { Map(key, value); }
  void operator()(const char* key, absl::optional<StorageDevices>* value, Presence /*presence*/) {
    if (value->has_value()) Map(key, &**value);
  }
  template <class T>
  void operator()(const char* key, std::vector<T>* value, Presence /*presence*/) {
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

}  // namespace

bool Hardware::has_storage() const {
  return std::all_of(servers.begin(), servers.end(),
                     [](const ServerKind& server) { return server.storage.has_value(); });
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
        absl::StrCat(origin, ": ", yaml.size(), " bytes, at most ", kMaxYamlBytes, " are read"));
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
  Hardware copy = hardware;  // the schema's visitors take what they may write to
  MapWriter writer(&yaml, "", "");
  ForEachField(&copy, &writer);
  return yaml;
}

std::vector<std::string> HardwareExamples() {
  std::vector<std::string> names;
  for (const auto& [name, yaml] : kHardwareExamples) names.emplace_back(name);
  return names;
}

absl::StatusOr<std::string> HardwareExample(absl::string_view name) {
  for (const auto& [known, yaml] : kHardwareExamples) {
    if (known == name) return std::string(yaml);
  }
  return absl::NotFoundError(absl::StrCat("--hardware: no file and no example of the name ", name,
                                          "; examples: ", absl::StrJoin(HardwareExamples(), ", ")));
}

}  // namespace eps::planner
