#include "base/files/safetensors_folder.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kSuffix = ".safetensors";
constexpr int kMaxDepth = 16;  // of what stands beside the weight_map
constexpr size_t kMaxFileName = 255;

// Whether `name` can only be a file of the folder itself.
bool IsPlainShardName(absl::string_view name) {
  return name.size() > kSuffix.size() && name.size() <= kMaxFileName &&
         absl::EndsWith(name, kSuffix) && name[0] != '.' && !absl::StrContains(name, '/') &&
         !absl::StrContains(name, '\\') && !absl::StrContains(name, '\0');
}

// The index as a state machine over the parser's events: keeps the weight_map, passes over the
// rest, and holds nothing that depth or repetition could make grow.
class IndexHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::map<std::string, std::string> file_by_tensor;

  const std::string& error() const { return error_; }
  bool had_map() const { return had_map_; }

  bool null() override { return Scalar(); }
  bool boolean(bool) override { return Scalar(); }
  bool number_integer(number_integer_t) override { return Scalar(); }
  bool number_unsigned(number_unsigned_t) override { return Scalar(); }
  bool number_float(number_float_t, const string_t&) override { return Scalar(); }
  bool binary(binary_t&) override { return Scalar(); }

  bool string(string_t& file) override {
    if (!in_map_) return Scalar();
    if (!IsPlainShardName(file)) {
      return Fail(absl::StrCat("tensor ", ShowUntrusted(key_), ": the shard ", ShowUntrusted(file),
                               " is not a plain name of a .safetensors file beside the index"));
    }
    if (files_.insert(file).second && files_.size() > kMaxSafetensorsShards) {
      return Fail(absl::StrCat("more than ", kMaxSafetensorsShards, " shards"));
    }
    if (file_by_tensor.size() == kMaxSafetensorsTensors) {
      return Fail(absl::StrCat("more than ", kMaxSafetensorsTensors, " tensors"));
    }
    if (!file_by_tensor.emplace(key_, std::move(file)).second) {
      return Fail(absl::StrCat("tensor ", ShowUntrusted(key_), " stands twice in the weight_map"));
    }
    return true;
  }

  bool key(string_t& key) override {
    key_ = std::move(key);
    if (depth_ != 1 || key_ != "weight_map") return true;
    return !std::exchange(had_map_, true) || Fail("weight_map stands twice");
  }

  bool start_object(size_t) override {
    if (in_map_)
      return Fail(absl::StrCat("tensor ", ShowUntrusted(key_), ": expected a file name"));
    in_map_ = depth_ == 1 && key_ == "weight_map";
    return Enter();
  }
  bool end_object() override {
    in_map_ = false;
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 0 || in_map_ || (depth_ == 1 && key_ == "weight_map")) return Scalar();
    return Enter();
  }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Fail(absl::StrCat("not JSON at its byte ", position));
  }

 private:
  bool Fail(std::string why) {
    error_ = std::move(why);
    return false;
  }
  bool Enter() { return ++depth_ <= kMaxDepth || Fail("nested too deeply"); }
  // A value that is neither an object nor a text of the map.
  bool Scalar() {
    if (depth_ == 0) return Fail("expected an object");
    if (in_map_)
      return Fail(absl::StrCat("tensor ", ShowUntrusted(key_), ": expected a file name"));
    if (depth_ == 1 && key_ == "weight_map") return Fail("weight_map: expected an object");
    return true;
  }

  int depth_ = 0;
  bool in_map_ = false;
  bool had_map_ = false;
  std::string key_;
  std::string error_;
  std::set<std::string> files_;
};

absl::StatusOr<std::string> ReadIndex(const std::string& path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) return absl::DataLossError(absl::StrCat(path, ": ", error.message()));
  if (bytes > kMaxSafetensorsIndexBytes) {
    return absl::DataLossError(absl::StrCat(path, ": an index of ", bytes, " bytes, at most ",
                                            kMaxSafetensorsIndexBytes, " are allowed"));
  }
  std::string text(bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(&text[0], static_cast<std::streamsize>(bytes))) {
    return IoError(absl::StrCat("cannot read ", path));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(
    absl::string_view json, const std::string& origin) {
  IndexHandler handler;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &handler)) {
    return absl::DataLossError(absl::StrCat(origin, ": ", handler.error()));
  }
  if (handler.file_by_tensor.empty()) {
    return absl::DataLossError(absl::StrCat(
        origin, handler.had_map() ? ": the weight_map is empty" : ": there is no weight_map"));
  }
  return std::move(handler.file_by_tensor);
}

std::string SafetensorsIndexText(const std::map<std::string, std::string>& file_by_tensor,
                                 uint64_t total_bytes, uint64_t total_elements) {
  nlohmann::ordered_json index;
  index["metadata"] = {{"total_parameters", total_elements}, {"total_size", total_bytes}};
  nlohmann::ordered_json& map = index["weight_map"] = nlohmann::ordered_json::object();
  for (const auto& [tensor, file] : file_by_tensor) map[tensor] = file;
  return index.dump(2) + "\n";
}

absl::StatusOr<std::unique_ptr<SafetensorsFolder>> SafetensorsFolder::Open(
    const std::string& path) {
  std::unique_ptr<SafetensorsFolder> folder(new SafetensorsFolder());
  folder->path_ = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    folder->path_ = absl::StrCat(path, "/", kSafetensorsFile);
    if (!fs::exists(folder->path_, error)) {
      folder->path_ = absl::StrCat(path, "/", kSafetensorsIndexFile);
    }
    if (!fs::exists(folder->path_, error)) {
      return absl::NotFoundError(
          absl::StrCat(path, " has neither ", kSafetensorsFile, " nor ", kSafetensorsIndexFile));
    }
  }
  if (absl::EndsWith(folder->path_, ".json")) {
    EPS_RETURN_IF_ERROR(folder->OpenShards());
    return folder;
  }
  EPS_ASSIGN_OR_RETURN(auto file, SafetensorsReader::Open(folder->path_));
  for (const SafetensorsEntry& entry : file->entries()) {
    folder->tensors_[entry.name] = {file.get(), &entry};
  }
  folder->files_.push_back(std::move(file));
  return folder;
}

absl::Status SafetensorsFolder::OpenShards() {
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadIndex(path_));
  EPS_ASSIGN_OR_RETURN(const auto file_by_tensor, ParseSafetensorsIndex(text, path_));
  std::set<std::string> names;
  for (const auto& [tensor, name] : file_by_tensor) names.insert(name);
  const std::string folder = fs::path(path_).parent_path().string();
  for (const std::string& name : names) {
    const std::string path = folder.empty() ? name : absl::StrCat(folder, "/", name);
    absl::StatusOr<std::unique_ptr<SafetensorsReader>> file = SafetensorsReader::Open(path);
    if (absl::IsNotFound(file.status())) {
      return absl::NotFoundError(absl::StrCat(path_, ": the shard ", name, " is missing"));
    }
    EPS_RETURN_IF_ERROR(file.status());
    for (const SafetensorsEntry& entry : (*file)->entries()) {
      const auto expected = file_by_tensor.find(entry.name);
      if (expected == file_by_tensor.end() || expected->second != name) {
        return absl::DataLossError(absl::StrCat(
            path, ": tensor ", ShowUntrusted(entry.name), " is in this shard; ", path_, " has it ",
            expected == file_by_tensor.end() ? "in none" : absl::StrCat("in ", expected->second),
            "; the files are not of one save"));
      }
      tensors_[entry.name] = {file->get(), &entry};
    }
    files_.push_back(*std::move(file));
  }
  for (const auto& [tensor, name] : file_by_tensor) {
    if (tensors_.count(tensor) != 0) continue;
    return absl::DataLossError(absl::StrCat(path_, ": tensor ", ShowUntrusted(tensor),
                                            " should be in ", name, ", which does not have it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsFolder::Tensor> SafetensorsFolder::Find(absl::string_view name) const {
  const auto found = tensors_.find(std::string(name));
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": no tensor ", ShowUntrusted(name)));
  }
  return found->second;
}

}  // namespace eps
