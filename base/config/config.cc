#include "base/config/config.h"

#include <algorithm>
#include <functional>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/config/config_keys.h"
#include "base/config/key_advice.h"
#include "base/config/value_text.h"
#include "base/job/names.h"
#include "base/job/optimizers.h"
#include "base/nearest_name.h"
#include "base/status_macros.h"
#include "yaml-cpp/yaml.h"

namespace eps {
namespace {

// A key of one configuration, with functions that set its value from text and print it.
struct Entry {
  std::string name;
  const char* type;
  std::string help;
  std::vector<std::string> names;  // the accepted values, if they are names
  std::function<absl::Status(const Value&)> parse;
  std::function<std::string()> print;
};

// Returns the names that the key of a value accepts; empty if its values are not names.
template <class T>
std::vector<std::string> NamesOfValue(const T&) {
  if constexpr (std::is_enum_v<T>) return NamesOf<T>();
  return {};
}
template <class T>
std::vector<std::string> NamesOfValue(const Auto<T>&) {
  std::vector<std::string> names = NamesOfValue(T());
  if (!names.empty()) names.insert(names.begin(), kAuto);
  return names;
}

// The numbers of one parameter: "auto", or a list.
absl::Status ParseNumbers(const OptimizerParameter& parameter, const Value& value,
                          OptimizerChoices* optimizer) {
  if (!value.is_list && value.text == kAuto) {
    for (const OptimizerNumber& number : parameter.numbers) (optimizer->*number.choice).reset();
    return absl::OkStatus();
  }
  std::vector<double> numbers;
  EPS_RETURN_IF_ERROR(ListKind<NumberKind>::Parse(value, &numbers));
  if (numbers.size() != parameter.numbers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", parameter.numbers.size(), " numbers, found ", numbers.size()));
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    optimizer->*parameter.numbers[i].choice = numbers[i];
  }
  return absl::OkStatus();
}

std::string PrintNumbers(const OptimizerParameter& parameter, const OptimizerChoices& optimizer) {
  const OptimizerSettings& defaults = DefaultsOf(optimizer.name);
  std::vector<double> numbers;
  bool is_open = true;
  for (const OptimizerNumber& number : parameter.numbers) {
    is_open &= !(optimizer.*number.choice).has_value();
    numbers.push_back((optimizer.*number.choice).value_or(defaults.*number.value));
  }
  return is_open ? kAuto : ListKind<NumberKind>::Print(numbers);
}

// Returns the help of a parameter, after the names of the optimizers that have it and before the
// defaults that auto stands for.
std::string HelpOf(const OptimizerParameter& parameter) {
  std::vector<std::pair<std::string, std::string>> defaults;  // text, names
  for (const OptimizerRow& row : Optimizers()) {
    if (!Has(row.name, parameter)) continue;
    std::vector<std::string> values;
    for (const OptimizerNumber& number : parameter.numbers) {
      values.push_back(NumberKind::Print(row.defaults.*number.value));
    }
    if (parameter.flag_or_null != nullptr) {
      values.push_back(FlagKind::Print(row.defaults.*parameter.flag_or_null->value));
    }
    const std::string text = absl::StrJoin(values, ", ");
    const auto same = std::find_if(defaults.begin(), defaults.end(),
                                   [&](const auto& each) { return each.first == text; });
    if (same != defaults.end()) {
      absl::StrAppend(&same->second, ", ", NameOf(row.name));
    } else {
      defaults.emplace_back(text, NameOf(row.name));
    }
  }
  const std::string usual = absl::StrJoin(defaults, "; ", [&](std::string* out, const auto& each) {
    absl::StrAppend(out, each.first, defaults.size() == 1 ? "" : " for " + each.second);
  });
  return absl::StrCat(absl::StrJoin(OwnersOf(parameter), ", "), ": ", parameter.help,
                      " auto means ", usual, ".");
}

// The visitor that lists the keys of a configuration. The configuration must outlive the list.
class EntryList {
 public:
  template <class T, class Rule>
  void Key(const char* name, T* value, const Rule&, std::string help) {
    using Kind = decltype(KindOf<T, Rule>());
    entries_.push_back({name, Kind::kType, std::move(help), NamesOfValue(*value),
                        [value](const Value& text) { return Kind::Parse(text, value); },
                        [value] { return Kind::Print(*value); }});
  }
  template <class T, class Usual, class Rule>
  void OptionalKey(const char* name, T* value, const Usual&, const Rule& rule, const char* help) {
    Key(name, value, rule, help);
  }
  // A flag, a number, or a list of numbers.
  void Parameter(const OptimizerParameter& parameter, OptimizerChoices* optimizer) {
    std::string help = HelpOf(parameter);
    if (parameter.flag_or_null != nullptr) {
      return Key(parameter.key, &(optimizer->*parameter.flag_or_null->choice), AnyValue(), help);
    }
    if (parameter.numbers.size() == 1) {
      return Key(parameter.key, &(optimizer->*parameter.numbers[0].choice), parameter.range, help);
    }
    entries_.push_back({parameter.key,
                        ListKind<NumberKind>::kType,
                        std::move(help),
                        {},
                        [&parameter, optimizer](const Value& value) {
                          return ParseNumbers(parameter, value, optimizer);
                        },
                        [&parameter, optimizer] { return PrintNumbers(parameter, *optimizer); }});
  }

  std::vector<Entry> entries() && { return std::move(entries_); }

 private:
  std::vector<Entry> entries_;
};

std::vector<Entry> EntriesOf(Config* config) {
  EntryList list;
  WalkConfig(&list, config);
  return std::move(list).entries();
}

struct Alias {
  absl::string_view name;
  absl::string_view key;
};

// Short forms, and names that users know from other programs. A bare section name is the key that
// receives a scalar in place of the section, as in `servers: 2`.
constexpr Alias kAliases[] = {
    {"gradient_accumulation_steps", "training.micro_batches"},
    {"training.gradient_accumulation_steps", "training.micro_batches"},
    {"gradient_clipping", "training.max_grad_norm"},
    {"training.gradient_clipping", "training.max_grad_norm"},
    {"training.max_seq_len", "training.seq_len"},
    {"eval_steps", "training.eval_steps"},
    {"servers", "servers.addresses"},
    {"servers.metrics", "servers.http"},  // its former name, which older states hold
};

std::string Normalized(absl::string_view key) { return absl::StrReplaceAll(key, {{"-", "_"}}); }

std::string UnknownKeyMessage(const std::vector<Entry>& entries, absl::string_view name) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) names.push_back(entry.name);
  const std::string message = absl::StrCat(name, " is not a configuration key");
  // A correct name in the wrong section is more likely than a misspelled name.
  const std::string advice = KeyAdvice(name, names);
  if (!advice.empty()) return absl::StrCat(message, "; ", advice);
  for (const Alias& alias : kAliases) names.emplace_back(alias.name);
  const std::string nearest = NearestName(name, names);
  if (!nearest.empty()) return absl::StrCat(message, "; did you mean ", nearest, "?");
  return absl::StrCat(message, "; eps config reference lists all keys");
}

absl::StatusOr<const Entry*> FindEntry(const std::vector<Entry>& entries,
                                       absl::string_view written) {
  const std::string normalized = Normalized(written);
  absl::string_view name = normalized;
  for (const Alias& alias : kAliases) {
    if (alias.name == normalized) name = alias.key;
  }
  for (const Entry& entry : entries) {
    if (entry.name == name) return &entry;
  }
  return absl::InvalidArgumentError(UnknownKeyMessage(entries, normalized));
}

// Two keys that give one setting.
struct KeyPair {
  absl::string_view one;
  absl::string_view other;
  bool default_counts;  // the default gives the setting, too: no warm-up
};
constexpr KeyPair kKeyPairs[] = {{"training.steps", "training.epochs", false},
                                 {"lr_scheduler.warmup_steps", "lr_scheduler.warmup_ratio", true}};

// Returns the text of a key's default.
std::string DefaultOf(absl::string_view key) {
  Config defaults;
  for (const Entry& entry : EntriesOf(&defaults)) {
    if (entry.name == key) return entry.print();
  }
  return "";
}

// Sets the keys of one layer of a configuration, which must outlive it. A key takes the place of
// its partner in the layers below. If a layer sets both, both stay, and BuildJobSpec refuses them.
class Layer {
 public:
  explicit Layer(Config* config) : entries_(EntriesOf(config)) {}

  const std::vector<Entry>& entries() const { return entries_; }

  absl::Status Set(const Entry& entry, const Value& value) {
    const absl::Status status = entry.parse(value);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(entry.name, ": ", status.message()));
    }
    set_.insert(entry.name);
    for (const KeyPair& pair : kKeyPairs) {
      if (entry.name != pair.one && entry.name != pair.other) continue;
      if (!pair.default_counts && entry.print() == DefaultOf(entry.name)) continue;
      EPS_RETURN_IF_ERROR(Reset(entry.name == pair.one ? pair.other : pair.one));
    }
    return absl::OkStatus();
  }
  absl::Status Set(absl::string_view key, absl::string_view value) {
    EPS_ASSIGN_OR_RETURN(const Entry* const found, FindEntry(entries_, key));
    return Set(*found, Value{std::string(value), {}, false});
  }

 private:
  // Sets a key to its default, unless this layer sets it.
  absl::Status Reset(absl::string_view key) {
    if (set_.count(std::string(key)) > 0) return absl::OkStatus();
    EPS_ASSIGN_OR_RETURN(const Entry* const found, FindEntry(entries_, key));
    return found->parse(Value{DefaultOf(key), {}, false});
  }

  const std::vector<Entry> entries_;
  std::set<std::string> set_;
};

bool IsSection(const std::vector<Entry>& entries, absl::string_view name) {
  const std::string prefix = absl::StrCat(name, ".");
  return std::any_of(entries.begin(), entries.end(),
                     [&](const Entry& entry) { return absl::StartsWith(entry.name, prefix); });
}

// Merges one YAML document into a configuration, and records the line that set each key.
class YamlMerge {
 public:
  YamlMerge(absl::string_view origin, Config* config) : origin_(origin), layer_(config) {}

  absl::Status Merge(const YAML::Node& root) {
    if (root.IsNull()) return absl::OkStatus();
    if (!root.IsMap()) {
      return Error(root, "expected sections of keys such as \"training:\", found something else");
    }
    for (const auto& entry : root) {
      EPS_ASSIGN_OR_RETURN(const std::string name, NameOf(entry.first));
      if (IsSection(layer_.entries(), name) && (entry.second.IsMap() || entry.second.IsNull())) {
        EPS_RETURN_IF_ERROR(MergeSection(name, entry.first, entry.second));
      } else {
        EPS_RETURN_IF_ERROR(MergeKey(name, entry.first, entry.second));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Error(const YAML::Node& node, absl::string_view message) const {
    return absl::InvalidArgumentError(absl::StrCat(origin_, ":", LineOf(node), ": ", message));
  }

 private:
  static int LineOf(const YAML::Node& node) { return node.Mark().line + 1; }

  absl::StatusOr<std::string> NameOf(const YAML::Node& node) const {
    if (!node.IsScalar()) return Error(node, "a key must be a plain name");
    return Normalized(node.Scalar());
  }

  absl::Status MergeSection(const std::string& section, const YAML::Node& key,
                            const YAML::Node& keys) {
    const auto [first, fresh] = section_lines_.emplace(section, LineOf(key));
    if (!fresh) {
      return Error(key, absl::StrCat("section ", section, " appears twice, first in line ",
                                     first->second, "; join the two"));
    }
    if (keys.IsNull()) return absl::OkStatus();  // all of its keys are commented out
    for (const auto& entry : keys) {
      EPS_ASSIGN_OR_RETURN(const std::string name, NameOf(entry.first));
      EPS_RETURN_IF_ERROR(MergeKey(absl::StrCat(section, ".", name), entry.first, entry.second));
    }
    return absl::OkStatus();
  }

  absl::Status MergeKey(const std::string& name, const YAML::Node& key_node,
                        const YAML::Node& value_node) {
    const absl::StatusOr<const Entry*> key = FindEntry(layer_.entries(), name);
    if (!key.ok()) return Error(key_node, key.status().message());
    const auto [first, fresh] = key_lines_.emplace((*key)->name, LineOf(key_node));
    if (!fresh) {
      return Error(key_node, absl::StrCat((*key)->name, " is set twice, first in line ",
                                          first->second, "; remove one"));
    }
    Value value;
    if (value_node.IsScalar()) {
      value.text = value_node.Scalar();
    } else if (value_node.IsSequence()) {
      value.is_list = true;
      for (const YAML::Node& item : value_node) {
        const bool maps = (*key)->type == absl::string_view(GroupRulesKind::kType);
        if (maps ? !item.IsMap() : !item.IsScalar()) {
          return Error(item, absl::StrCat(name, ": a list of ", maps ? "maps" : "plain values"));
        }
        value.items.push_back(maps ? YAML::Dump(item) : item.Scalar());
      }
    } else {
      return Error(key_node, absl::StrCat(name, ": expected a value (type ", (*key)->type,
                                          "), found ", value_node.IsMap() ? "a map" : "nothing"));
    }
    const absl::Status set = layer_.Set(**key, value);
    return set.ok() ? set : Error(key_node, set.message());
  }

  const std::string origin_;
  Layer layer_;
  std::map<std::string, int> section_lines_;  // where each section began
  std::map<std::string, int> key_lines_;      // where each key was set
};

}  // namespace

absl::Status Config::Set(absl::string_view key, absl::string_view value) {
  return Layer(this).Set(key, value);
}

absl::Status Config::MergeYaml(absl::string_view yaml, absl::string_view origin) {
  Config merged = *this;
  YamlMerge merge(origin, &merged);
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(yaml));
    if (documents.size() > 1) {
      return merge.Error(documents[1], "a second document (\"---\"); only one is read");
    }
    if (!documents.empty()) EPS_RETURN_IF_ERROR(merge.Merge(documents[0]));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ":", error.mark.line + 1, ": not YAML: ", error.msg));
  }
  *this = std::move(merged);
  return absl::OkStatus();
}

absl::Status Config::MergeEnvironment(const std::map<std::string, std::string>& environment) {
  Config merged = *this;
  Layer layer(&merged);
  for (const auto& [name, value] : environment) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, "EPS_")) continue;
    // Variables such as EPS_LOG are not configuration keys; EPS_SERVERS is the only short form.
    if (!absl::StrContains(rest, "__") && rest != "SERVERS") continue;
    const std::string key = absl::StrReplaceAll(absl::AsciiStrToLower(rest), {{"__", "."}});
    const absl::Status set = layer.Set(key, value);
    if (!set.ok()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", set.message()));
  }
  *this = std::move(merged);
  return absl::OkStatus();
}

absl::Status Config::MergeFlags(const std::vector<std::pair<std::string, std::string>>& flags) {
  Config merged = *this;
  Layer layer(&merged);
  for (const auto& [key, value] : flags) {
    const absl::Status set = layer.Set(key, value);
    if (!set.ok()) return absl::InvalidArgumentError(absl::StrCat("--", key, ": ", set.message()));
  }
  *this = std::move(merged);
  return absl::OkStatus();
}

std::string Config::ToYaml() const {
  Config copy = *this;
  std::string yaml;
  std::string section;
  for (const Entry& entry : EntriesOf(&copy)) {
    const std::pair<std::string, std::string> name =
        absl::StrSplit(entry.name, absl::MaxSplits('.', 1));
    if (name.first != section) absl::StrAppend(&yaml, name.first, ":\n");
    section = name.first;
    absl::StrAppend(&yaml, "  ", name.second, ": ", entry.print(), "\n");
  }
  return yaml;
}

std::vector<ConfigKey> ConfigKeys() {
  Config defaults;
  std::vector<ConfigKey> keys;
  for (Entry& entry : EntriesOf(&defaults)) {
    if (!entry.names.empty()) {
      absl::StrAppend(&entry.help, " One of ", absl::StrJoin(entry.names, ", "), ".");
    }
    for (const Alias& alias : kAliases) {
      if (alias.key == entry.name) absl::StrAppend(&entry.help, " Also: ", alias.name, ".");
    }
    keys.push_back({entry.name, entry.type, entry.print(), std::move(entry.help), entry.names});
  }
  return keys;
}

absl::StatusOr<uint64_t> ParseSize(absl::string_view text) {
  Value value;
  value.text = std::string(text);
  uint64_t bytes = 0;
  EPS_RETURN_IF_ERROR(SizeKind::Parse(value, &bytes));
  return bytes;
}

}  // namespace eps
