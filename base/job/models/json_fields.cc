#include "base/job/models/json_fields.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace eps {
namespace {

using nlohmann::json;

constexpr size_t kShownCharacters = 80;

// Returns whether brackets outside of strings nest deeper than `max_depth`.
bool IsDeeper(absl::string_view text, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

const json& EmptyList() {
  static const json* const empty = new json(json::array());
  return *empty;
}

const json& EmptyObject() {
  static const json* const empty = new json(json::object());
  return *empty;
}

}  // namespace

absl::StatusOr<json> ParseJsonObject(absl::string_view text, int max_depth) {
  if (IsDeeper(text, max_depth)) {
    return absl::InvalidArgumentError(absl::StrCat("nested deeper than ", max_depth, " levels"));
  }
  json value = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_object()) return value;
  return absl::InvalidArgumentError(value.is_discarded() ? "not valid JSON" : "not a JSON object");
}

std::string ShowJson(const json& value) {
  // Does not walk a value that may be large.
  if (value.is_structured()) {
    return absl::StrCat(value.is_array() ? "a list of " : "an object of ", value.size());
  }
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kShownCharacters) text = text.substr(0, kShownCharacters) + "...";
  return text;
}

void FirstError::Expected(absl::string_view where, absl::string_view expected, const json& found) {
  Set(where, absl::StrCat("expected ", expected, ", found ", ShowJson(found)));
}

void FirstError::Set(absl::string_view where, absl::string_view what) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

void FirstError::Take(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

JsonFields::JsonFields(const json& object, std::string where, FirstError* error)
    : object_(object.is_object() ? object : EmptyObject()),
      where_(std::move(where)),
      error_(error) {
  if (!object.is_object()) error_->Expected(where_, "an object", object);
}

std::string JsonFields::Where(const char* key) const {
  return where_.empty() ? key : absl::StrCat(where_, ".", key);
}

std::string JsonFields::JoinNames(const std::vector<std::string>& names) {
  return absl::StrJoin(names, " or ");
}

const json* JsonFields::Find(const char* key) {
  if (!error_->ok()) return nullptr;
  read_.insert(key);
  const auto found = object_.find(key);
  if (found != object_.end()) return &*found;
  error_->Set(Where(key), "is missing");
  return nullptr;
}

std::string JsonFields::Text(const char* key, size_t max_size) {
  const json* const value = Find(key);
  if (value == nullptr) return "";
  if (value->is_string() && value->get_ref<const std::string&>().size() <= max_size) {
    return value->get<std::string>();
  }
  error_->Expected(Where(key), absl::StrCat("a text of at most ", max_size, " bytes"), *value);
  return "";
}

std::string JsonFields::Name(const char* key) {
  const std::string name = Text(key, 256);
  if (!error_->ok()) return "";
  error_->Take(CheckName(Where(key), name, "_.-"));
  return name;
}

int64_t JsonFields::Whole(const char* key, Range range) {
  const json* const value = Find(key);
  if (value == nullptr) return 0;
  if (value->is_number_unsigned()) {
    const uint64_t whole = value->get<uint64_t>();
    if (whole >= range.low && whole <= range.high) return static_cast<int64_t>(whole);
  }
  error_->Expected(Where(key), absl::StrCat("a whole number from ", range.low, " to ", range.high),
                   *value);
  return 0;
}

double JsonFields::Number(const char* key, double low, double high) {
  const json* const value = Find(key);
  if (value == nullptr) return 0;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (CheckSigned(key, number, low, high).ok()) return number;
  }
  error_->Expected(Where(key), absl::StrCat("a number from ", low, " to ", high), *value);
  return 0;
}

bool JsonFields::Flag(const char* key) {
  const json* const value = Find(key);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  error_->Expected(Where(key), "true or false", *value);
  return false;
}

bool JsonFields::Mark(const char* key) {
  if (!Has(key)) return false;
  const bool flag = Flag(key);
  if (!flag && error_->ok()) error_->Expected(Where(key), "true, or no such key", object_[key]);
  return flag;
}

const json& JsonFields::List(const char* key, size_t max_size) {
  const json* const value = Find(key);
  if (value == nullptr) return EmptyList();
  if (value->is_array() && value->size() <= max_size) return *value;
  error_->Expected(Where(key), absl::StrCat("a list of at most ", max_size, " values"), *value);
  return EmptyList();
}

const json& JsonFields::Object(const char* key) {
  const json* const value = Find(key);
  if (value == nullptr) return EmptyObject();
  if (!value->is_object()) error_->Expected(Where(key), "an object", *value);
  return *value;
}

void JsonFields::Done() {
  for (auto field = object_.begin(); field != object_.end() && error_->ok(); ++field) {
    if (read_.count(field.key()) == 0) {
      error_->Set(where_.empty() ? "the program" : where_,
                  absl::StrCat("unknown key ", ShowJson(json(field.key()))));
    }
  }
}

}  // namespace eps
