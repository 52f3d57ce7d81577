#ifndef EPS_BASE_FILES_SAFETENSORS_FOLDER_H_
#define EPS_BASE_FILES_SAFETENSORS_FOLDER_H_

// A model's tensors as Hugging Face's libraries save them: one model.safetensors, or shards beside
// a model.safetensors.index.json that says which tensor lies in which.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/files/safetensors.h"

namespace eps {

inline constexpr char kSafetensorsFile[] = "model.safetensors";
inline constexpr char kSafetensorsIndexFile[] = "model.safetensors.index.json";

// Limits of an index: each shard is an open, mapped file.
inline constexpr uint64_t kMaxSafetensorsIndexBytes = 100'000'000;
inline constexpr size_t kMaxSafetensorsShards = 4096;

// The weight_map of an index: file name by tensor name. Errors name `origin`. DataLoss for
// text that is not an index, a name given twice, more tensors or shards than allowed, and a shard
// that is not a plain name of a .safetensors file in the same folder ("../x", "/x", ".x").
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(absl::string_view json,
                                                                         const std::string& origin);

// The index of shards: `file_by_tensor` as ParseSafetensorsIndex reads it back.
std::string SafetensorsIndexText(const std::map<std::string, std::string>& file_by_tensor,
                                 uint64_t total_bytes, uint64_t total_elements);

// All tensors of a model in one file or several. Immutable, thread-safe.
class SafetensorsFolder {
 public:
  // A tensor and the file that holds it. Borrowed from the folder.
  struct Tensor {
    const SafetensorsReader* file;
    const SafetensorsEntry* entry;

    absl::Status Read(uint64_t first, size_t count, float* out) const {
      return file->Read(*entry, first, count, out);
    }
  };

  // `path`: a .safetensors file, an index, or a folder, where a model.safetensors wins over an
  // index, as in transformers. NotFound names the folder without either, or the shard that is
  // missing. DataLoss names the file and the tensor: as SafetensorsReader and ParseSafetensorsIndex
  // for each file; for a tensor that is not in the shard that the index names, or in another shard
  // too, or in a shard and not in the index (the files are not of one save).
  static absl::StatusOr<std::unique_ptr<SafetensorsFolder>> Open(const std::string& path);
  SafetensorsFolder(const SafetensorsFolder&) = delete;
  SafetensorsFolder& operator=(const SafetensorsFolder&) = delete;

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  // The file or the index.
  const std::string& path() const { return path_; }
  // NotFound names the tensor and the path.
  absl::StatusOr<Tensor> Find(absl::string_view name) const;

 private:
  SafetensorsFolder() = default;
  absl::Status OpenShards();

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace eps

#endif  // EPS_BASE_FILES_SAFETENSORS_FOLDER_H_
