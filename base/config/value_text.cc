#include "base/config/value_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "yaml-cpp/yaml.h"

namespace eps {
namespace {

std::string Shown(const Value& value) {
  if (value.is_list) return absl::StrCat("a list of ", value.items.size());
  return absl::StrCat("\"", value.text, "\"");
}

// Returns the plain form if YAML reads it back as the same text, else the quoted form.
std::string QuotedText(const std::string& text) {
  const auto is_plain = [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '/' || c == '-';
  };
  const std::string lower = absl::AsciiStrToLower(text);
  if (!text.empty() && text[0] != '-' && lower != "null" &&
      std::all_of(text.begin(), text.end(), is_plain)) {
    return text;
  }
  static constexpr char kHex[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (absl::ascii_iscntrl(c)) {
      quoted += {'\\', 'x', kHex[(c >> 4) & 15], kHex[c & 15]};
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

struct Unit {
  absl::string_view name;
  uint64_t factor;
};

// Parses "1.5GiB" into whole base units, rounded down; at most six decimals. Returns false if the
// text is not a number followed by one of the units, or if it exceeds `limit`.
bool ParseWithUnit(absl::string_view text, const Unit* begin, const Unit* end, uint64_t limit,
                   uint64_t* out) {
  const size_t number_end = std::min(text.find_first_not_of("0123456789."), text.size());
  const absl::string_view suffix = absl::StripAsciiWhitespace(text.substr(number_end));
  const Unit* unit = std::find_if(begin, end, [&](const Unit& u) { return u.name == suffix; });
  if (unit == end) return false;
  const absl::string_view number = text.substr(0, number_end);
  const size_t point = std::min(number.find('.'), number.size());
  uint64_t whole = 0;
  if (!absl::SimpleAtoi(number.substr(0, point), &whole) || whole > limit / unit->factor) {
    return false;
  }
  uint64_t part = 0;
  if (point < number.size()) {
    std::string decimals(number.substr(point + 1));
    if (decimals.empty() || decimals.size() > 6) return false;
    decimals.resize(6, '0');
    if (!absl::SimpleAtoi(decimals, &part)) return false;
    part = part * unit->factor / 1'000'000;  // factors stay below 2^43: no overflow
  }
  *out = whole * unit->factor + part;
  return *out <= limit && *out >= part;
}

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr Unit kSizeUnits[] = {{"", 1},
                               {"B", 1},
                               {"KiB", 1 << 10},
                               {"MiB", 1 << 20},
                               {"GiB", kGiB},
                               {"TiB", kGiB << 10},
                               {"kB", 1'000},
                               {"KB", 1'000},
                               {"MB", 1'000'000},
                               {"GB", 1'000'000'000},
                               {"TB", 1'000'000'000'000}};
constexpr Unit kDurationUnits[] = {{"ms", 1}, {"s", 1'000}, {"m", 60'000}, {"h", 3'600'000}};

absl::Status ParseGroupRule(const YAML::Node& node, GroupRule* rule) {
  if (!node.IsMap()) return absl::InvalidArgumentError("expected maps {match: REGEX, ...}");
  for (const auto& field : node) {
    if (!field.first.IsScalar() || !field.second.IsScalar()) {
      return absl::InvalidArgumentError("expected plain values in {match: REGEX, ...}");
    }
    const std::string& name = field.first.Scalar();
    const Value value = {field.second.Scalar(), {}, false};
    absl::Status status;
    if (name == "match") {
      rule->match = value.text;
    } else if (name == "lr_multiplier") {
      status = NumberKind::Parse(value, &rule->lr_multiplier);
    } else if (name == "weight_decay") {
      status = AutoKind<NumberKind>::Parse(value, &rule->weight_decay);
    } else if (name == "frozen") {
      status = FlagKind::Parse(value, &rule->frozen);
    } else {
      return absl::InvalidArgumentError(
          UnknownNameText(name, {"match", "lr_multiplier", "weight_decay", "frozen"}));
    }
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", status.message()));
  }
  if (!rule->match.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a rule needs match: a regular expression for names of tensors");
}

}  // namespace

absl::Status Expected(absl::string_view what, const Value& value) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", found ", Shown(value)));
}

absl::Status TextKind::Parse(const Value& value, std::string* out) {
  if (value.is_list) return Expected("text", value);
  *out = value.text;
  return absl::OkStatus();
}

std::string TextKind::Print(const std::string& text) { return QuotedText(text); }

absl::Status AddressListKind::Parse(const Value& value, std::string* out) {
  *out = value.is_list ? absl::StrJoin(value.items, ",") : value.text;
  return absl::OkStatus();
}

absl::Status NumberKind::Parse(const Value& value, double* out) {
  double parsed = 0;
  if (value.is_list || !absl::SimpleAtod(value.text, &parsed) || !std::isfinite(parsed)) {
    return Expected("a finite number", value);
  }
  *out = parsed;
  return absl::OkStatus();
}

std::string NumberKind::Print(double number) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), number).ptr);
}

absl::Status FlagKind::Parse(const Value& value, bool* out) {
  if (value.is_list || (value.text != "true" && value.text != "false")) {
    return Expected("true or false", value);
  }
  *out = value.text == "true";
  return absl::OkStatus();
}

absl::Status SizeKind::Parse(const Value& value, uint64_t* out) {
  uint64_t bytes = 0;
  if (value.is_list || !ParseWithUnit(value.text, std::begin(kSizeUnits), std::end(kSizeUnits),
                                      std::numeric_limits<uint64_t>::max(), &bytes)) {
    return Expected("a size such as 16GiB, 500MB or a number of bytes", value);
  }
  *out = bytes;
  return absl::OkStatus();
}

std::string SizeKind::Print(uint64_t bytes) {
  if (bytes != 0 && bytes % kGiB == 0) return absl::StrCat(bytes / kGiB, "GiB");
  return absl::StrCat(bytes);
}

absl::Status DurationKind::Parse(const Value& value, int64_t* out) {
  uint64_t ms = 0;
  const bool is_zero = !value.is_list && value.text == "0";  // needs no unit
  if (value.is_list ||
      (!is_zero && !ParseWithUnit(value.text, std::begin(kDurationUnits), std::end(kDurationUnits),
                                  std::numeric_limits<int64_t>::max(), &ms))) {
    return Expected("a duration such as 500ms, 30s, 5m or 1h", value);
  }
  *out = static_cast<int64_t>(ms);
  return absl::OkStatus();
}

absl::Status TimeoutKind::Parse(const Value& value, int64_t* out) {
  int64_t ms = 0;
  EPS_RETURN_IF_ERROR(DurationKind::Parse(value, &ms));
  if (ms < kLeastMs) return Expected("a duration of at least 1s", value);
  *out = ms;
  return absl::OkStatus();
}

std::string DurationKind::Print(int64_t ms) {
  if (ms % 1'000 == 0) return absl::StrCat(ms / 1'000, "s");
  return absl::StrCat(ms, "ms");
}

absl::Status GroupRulesKind::Parse(const Value& value, std::vector<GroupRule>* out) {
  std::vector<GroupRule> rules;
  try {
    const YAML::Node list = value.is_list ? YAML::Node(YAML::NodeType::Sequence)
                                          : YAML::Load(value.text.empty() ? "[]" : value.text);
    if (!list.IsSequence()) return Expected("a list [{match: REGEX, ...}, ...]", value);
    std::vector<YAML::Node> maps(list.begin(), list.end());
    for (const std::string& item : value.items) maps.push_back(YAML::Load(item));
    for (const YAML::Node& map : maps) {
      rules.emplace_back();
      EPS_RETURN_IF_ERROR(ParseGroupRule(map, &rules.back()));
    }
  } catch (const YAML::Exception&) {
    return Expected("a list [{match: REGEX, ...}, ...]", value);
  }
  *out = std::move(rules);
  return absl::OkStatus();
}

std::string GroupRulesKind::Print(const std::vector<GroupRule>& rules) {
  std::vector<std::string> maps;
  for (const GroupRule& rule : rules) {
    maps.push_back(absl::StrCat("{match: ", TextKind::Print(rule.match),
                                ", lr_multiplier: ", NumberKind::Print(rule.lr_multiplier),
                                ", weight_decay: ", AutoKind<NumberKind>::Print(rule.weight_decay),
                                rule.frozen ? ", frozen: true}" : "}"));
  }
  return absl::StrCat("[", absl::StrJoin(maps, ", "), "]");
}

absl::Status ItemsOf(const Value& value, std::vector<std::string>* items) {
  items->clear();
  if (value.is_list) {
    *items = value.items;
    return absl::OkStatus();
  }
  const absl::string_view text = absl::StripAsciiWhitespace(value.text);
  if (text.empty()) return absl::OkStatus();
  if (text.front() != '[') {
    for (absl::string_view item : absl::StrSplit(text, ',')) {
      items->emplace_back(absl::StripAsciiWhitespace(item));
    }
    return absl::OkStatus();
  }
  try {
    for (const YAML::Node& item : YAML::Load(std::string(text))) {
      if (!item.IsScalar()) return Expected("a list of plain values", value);
      items->push_back(item.Scalar());
    }
  } catch (const YAML::Exception&) {
    return Expected("a list such as [a, b] or a,b", value);
  }
  return absl::OkStatus();
}

}  // namespace eps
