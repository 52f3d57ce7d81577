#ifndef EPS_BASE_JOB_MODELS_JSON_FIELDS_H_
#define EPS_BASE_JOB_MODELS_JSON_FIELDS_H_

// Reads JSON that a stranger wrote: bounded in depth, without exceptions, and with a refusal of
// every key that nobody asked for.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job/key_rules.h"
#include "base/job/names.h"
#include "nlohmann/json.hpp"

namespace eps {

// Parses an object. InvalidArgument for text that is not JSON, not an object, or nested deeper than
// `max_depth`, so that no later walk over the value overflows the stack.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, int max_depth);

// Returns the start of a value, for a message.
std::string ShowJson(const nlohmann::json& value);

// The first error of a reader. Later errors are dropped.
class FirstError {
 public:
  // Records "where: expected ..., found ...".
  void Expected(absl::string_view where, absl::string_view expected, const nlohmann::json& found);
  void Set(absl::string_view where, absl::string_view what);
  void Take(const absl::Status& status);
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

// The fields of one object, each of which must be there, except marks. After an error all of them
// return an empty value. `object` and `error` outlive it.
class JsonFields {
 public:
  // `where` names the object in messages.
  JsonFields(const nlohmann::json& object, std::string where, FirstError* error);

  std::string Text(const char* key, size_t max_size);
  // As CheckName of base/job/key_rules.h.
  std::string Name(const char* key);
  int64_t Whole(const char* key, Range range);
  // A number from `low` to `high`, neither denormal nor -0.
  double Number(const char* key, double low, double high);
  bool Flag(const char* key);
  bool Has(const char* key) const { return object_.contains(key); }
  // A field that is true or not there, so that it has one spelling.
  bool Mark(const char* key);
  // A list of at most `max_size` values; another value gives an empty list.
  const nlohmann::json& List(const char* key, size_t max_size);
  const nlohmann::json& Object(const char* key);
  template <class E>
  E Choice(const char* key) {
    E value{};
    const std::string text = Text(key, kMaxChoice);
    if (error_->ok() && !FindName(text, &value)) {
      error_->Expected(Where(key), JoinNames(NamesOf<E>()), text);
    }
    return value;
  }
  // Refuses the keys that were not read. Call it last.
  void Done();

  std::string Where(const char* key) const;

 private:
  static constexpr size_t kMaxChoice = 64;
  static std::string JoinNames(const std::vector<std::string>& names);
  const nlohmann::json* Find(const char* key);

  const nlohmann::json& object_;
  const std::string where_;
  FirstError* const error_;
  std::set<std::string> read_;
};

}  // namespace eps

#endif  // EPS_BASE_JOB_MODELS_JSON_FIELDS_H_
