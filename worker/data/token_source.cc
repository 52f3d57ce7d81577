#include "worker/data/token_source.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/descriptor.h"
#include "base/exit_code.h"
#include "base/job/data_position.h"
#include "base/job/models/model_family.h"
#include "base/status_macros.h"
#include "worker/data/data_form.h"

namespace eps {
namespace {

constexpr char kQuickstartFolder[] = "/usr/share/common-licenses";

// A whole file, mapped read-only. Empty files have no mapping.
class MappedFile {
 public:
  MappedFile() = default;
  ~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
  }
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // `key` is the configuration key that names the file.
  static absl::StatusOr<MappedFile> Open(const std::string& path, const std::string& key) {
    const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.ok()) {
      const int error = errno;
      const std::string text =
          absl::StrCat("cannot open data file ", path, " (", key, "): ", strerror(error));
      return error == ENOENT || error == ENOTDIR ? absl::NotFoundError(text)
                                                 : absl::PermissionDeniedError(text);
    }
    return Map(fd.get(), path, key);
  }

  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }
  absl::string_view bytes() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  static absl::StatusOr<MappedFile> Map(int fd, const std::string& path, const std::string& key) {
    struct stat info;
    if (fstat(fd, &info) != 0) {
      return absl::InternalError(
          absl::StrCat("cannot stat data file ", path, ": ", strerror(errno)));
    }
    if (!S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat(key, " names ", path, ", which is not a regular file"));
    }
    MappedFile file;
    if (info.st_size == 0) return file;
    void* p = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      return absl::InternalError(absl::StrCat("cannot map data file ", path, " of ", info.st_size,
                                              " bytes: ", strerror(errno)));
    }
    file.data_ = static_cast<const uint8_t*>(p);
    file.size_ = static_cast<uint64_t>(info.st_size);
    return file;
  }

  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
};

// The part that both kinds share: everything that iterates over all tokens.
class TokenDataBase : public TokenData {
 public:
  // `name` names the files in errors.
  explicit TokenDataBase(std::string name) : name_(std::move(name)) {}

  std::string Sha256Hex() const override {
    constexpr uint64_t kBlock = 32 * 1024;
    Sha256 hash;
    std::string block;
    for (uint64_t begin = 0; begin < size(); begin += kBlock) {
      const uint64_t end = std::min(size(), begin + kBlock);
      block.clear();
      for (uint64_t i = begin; i < end; ++i) {
        const uint16_t token = (*this)[i];
        block.push_back(static_cast<char>(token & 0xff));
        block.push_back(static_cast<char>(token >> 8));
      }
      hash.Update(block);
    }
    return ToHex(hash.Finish());
  }

  double UnigramEntropy() const override {
    std::vector<uint64_t> counts(1 << 16, 0);
    for (uint64_t i = 0; i < size(); ++i) ++counts[(*this)[i]];
    double entropy = 0;
    for (const uint64_t count : counts) {
      if (count == 0) continue;
      const double p = static_cast<double>(count) / static_cast<double>(size());
      entropy -= p * std::log(p);
    }
    return entropy;
  }

  absl::Status CheckIds(uint32_t vocab_size) const override {
    for (uint64_t i = 0; i < size(); ++i) {
      if ((*this)[i] < vocab_size) continue;
      return WithExitCode(
          absl::OutOfRangeError(absl::StrCat("token ", i, " of ", name_, " has id ", (*this)[i],
                                             ", but the model's vocabulary has ", vocab_size,
                                             " ids (vocab_size of model.path)")),
          ExitCode::kDataInvalid);
    }
    return absl::OkStatus();
  }

 private:
  const std::string name_;
};

// Text files, read into memory.
class TextData final : public TokenDataBase {
 public:
  TextData(std::string bytes, std::string name)
      : TokenDataBase(std::move(name)), bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  uint16_t operator[](uint64_t i) const override { return static_cast<uint8_t>(bytes_[i]); }

 private:
  const std::string bytes_;
};

// One .bin file, memory-mapped.
class BinData final : public TokenDataBase {
 public:
  BinData(MappedFile file, std::string name)
      : TokenDataBase(std::move(name)), file_(std::move(file)) {}
  uint64_t size() const override { return file_.size() / 2; }
  uint16_t operator[](uint64_t i) const override {
    return static_cast<uint16_t>(file_.data()[2 * i] | (file_.data()[2 * i + 1] << 8));
  }

 private:
  const MappedFile file_;
};

bool IsBin(const std::string& path) { return absl::EndsWith(path, ".bin"); }

absl::Status EmptyFile(const std::string& path, const std::string& key) {
  return absl::InvalidArgumentError(absl::StrCat("data file ", path, " (", key, ") is empty"));
}

absl::StatusOr<std::shared_ptr<const TokenData>> OpenBin(const std::string& path,
                                                         uint32_t vocab_size,
                                                         const std::string& key) {
  EPS_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path, key));
  if (file.size() == 0) return EmptyFile(path, key);
  EPS_RETURN_IF_ERROR(CheckBinForm(file.bytes(), vocab_size, path, key));
  return std::make_shared<const BinData>(std::move(file), absl::StrCat(path, " (", key, ")"));
}

absl::Status NeedsByteVocabulary(const std::string& path, uint32_t vocab_size,
                                 const std::string& key) {
  return absl::InvalidArgumentError(absl::StrCat(
      "text files are read as bytes and need a model whose vocab_size is 256, but it is ",
      vocab_size, ": tokenize ", path,
      " into one flat file of little-endian uint16 ids that ends in .bin and name it in ", key,
      ", or change the model's vocab_size"));
}

absl::StatusOr<std::shared_ptr<const TokenData>> OpenText(const std::vector<std::string>& paths,
                                                          uint32_t vocab_size,
                                                          const std::string& key) {
  std::string bytes;
  for (const std::string& path : paths) {
    EPS_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path, key));
    if (file.size() == 0) return EmptyFile(path, key);
    EPS_RETURN_IF_ERROR(CheckTextForm(file.bytes(), path, key));
    if (vocab_size != kByteVocabulary) return NeedsByteVocabulary(path, vocab_size, key);
    absl::StrAppend(&bytes, file.bytes());
  }
  return std::make_shared<const TextData>(std::move(bytes), absl::StrCat("the text (", key, ")"));
}

absl::Status CheckPlace(const JobSpec& spec, Step step, uint32_t index) {
  const uint64_t batches = uint64_t{spec.training.parts} * spec.training.micro_batches;
  if (step.value() >= 1 && index < batches) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("no micro-batch ", index, " of step ",
                                                 step.value(), ": a step has ", batches,
                                                 " and steps count from 1"));
}

MicroBatch Identity(const JobSpec& spec, Step step, uint32_t index) {
  MicroBatch batch;
  batch.step = step;
  batch.index = index;
  batch.samples = spec.training.micro_batch_size;
  batch.seq_len = spec.training.seq_len;
  return batch;
}

// Appends tokens and labels of a sample.
void AddSample(const TokenData& data, uint64_t sample, MicroBatch* batch) {
  const uint64_t first = sample * batch->seq_len;
  for (uint64_t i = first; i < first + batch->seq_len; ++i) {
    batch->tokens.push_back(data[i]);
    batch->labels.push_back(data[i + 1]);
  }
}

// Batches of training samples.
class TokenBatchSource final : public BatchSource {
 public:
  TokenBatchSource(JobSpec spec, const TokenData& data) : spec_(std::move(spec)), data_(data) {}

  absl::StatusOr<MicroBatch> Get(Step step, uint32_t index) override {
    EPS_RETURN_IF_ERROR(CheckPlace(spec_, step, index));
    if (data_.size() != spec_.data.tokens) {
      return absl::FailedPreconditionError(
          absl::StrCat("the job was created for data of ", spec_.data.tokens,
                       " tokens, but the files of data.path hold ", data_.size()));
    }
    const uint64_t length = spec_.training.seq_len;
    MicroBatch batch = Identity(spec_, step, index);
    batch.tokens.reserve(batch.samples * length);
    batch.labels.reserve(batch.samples * length);
    for (uint32_t slot = 0; slot < batch.samples; ++slot) {
      AddSample(data_, SampleIndex(spec_, step, index, slot), &batch);
    }
    return batch;
  }

 private:
  const JobSpec spec_;
  const TokenData& data_;
};

// The part that evaluations of both kinds of models share: samples in order.
class SampleRange : public EvaluationSource {
 public:
  SampleRange(JobSpec spec, uint64_t samples) : spec_(std::move(spec)), samples_(samples) {}

  uint32_t micro_batches() const override {
    const uint64_t size = spec_.training.micro_batch_size;
    return static_cast<uint32_t>((samples_ + size - 1) / size);
  }
  absl::StatusOr<MicroBatch> Get(uint32_t index) override {
    const uint64_t first = uint64_t{index} * spec_.training.micro_batch_size;
    if (first >= samples_) {
      return absl::InvalidArgumentError(
          absl::StrCat("no micro-batch ", index, " of ", samples_, " held-out samples"));
    }
    MicroBatch batch = Identity(spec_, Step(0), index);
    batch.held_out = true;
    batch.samples = static_cast<uint32_t>(std::min<uint64_t>(batch.samples, samples_ - first));
    return batch;
  }

 private:
  const JobSpec spec_;
  const uint64_t samples_;
};

// Held-out samples of token data.
class TokenEvaluationSource final : public SampleRange {
 public:
  TokenEvaluationSource(const JobSpec& spec, const TokenData& data, uint64_t samples)
      : SampleRange(spec, samples), size_(spec.training.micro_batch_size), data_(data) {}

  absl::StatusOr<MicroBatch> Get(uint32_t index) override {
    EPS_ASSIGN_OR_RETURN(MicroBatch batch, SampleRange::Get(index));
    for (uint32_t slot = 0; slot < batch.samples; ++slot) {
      AddSample(data_, uint64_t{index} * size_ + slot, &batch);
    }
    return batch;
  }

 private:
  const uint64_t size_;
  const TokenData& data_;
};

// Batches without tokens.
class EmptyBatchSource final : public BatchSource {
 public:
  explicit EmptyBatchSource(JobSpec spec) : spec_(std::move(spec)) {}

  absl::StatusOr<MicroBatch> Get(Step step, uint32_t index) override {
    EPS_RETURN_IF_ERROR(CheckPlace(spec_, step, index));
    return Identity(spec_, step, index);
  }

 private:
  const JobSpec spec_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenData>> TokenData::Open(
    const std::vector<std::string>& paths, uint32_t vocab_size, const std::string& key) {
  if (paths.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, " names no file: give text files or one .bin"));
  }
  const auto bins = std::count_if(paths.begin(), paths.end(), IsBin);
  if (bins == 0) return OpenText(paths, vocab_size, key);
  if (paths.size() == 1) return OpenBin(paths[0], vocab_size, key);
  return absl::InvalidArgumentError(
      absl::StrCat(key, " names ", paths.size(), " files, ", bins,
                   " of them .bin: give text files only, or one .bin alone"));
}

absl::StatusOr<std::vector<std::string>> QuickstartTextFiles() {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> files;
  fs::recursive_directory_iterator it(kQuickstartFolder, error);
  const fs::recursive_directory_iterator end;
  while (!error && it != end) {
    // Ignores links: most of them repeat a file under a shorter name.
    if (it->symlink_status(error).type() == fs::file_type::regular) {
      files.push_back(it->path().string());
    }
    if (!error) it.increment(error);
  }
  if (error) {
    return absl::NotFoundError(absl::StrCat("cannot list ", kQuickstartFolder, ": ",
                                            error.message(), "; name text files in data.path"));
  }
  if (files.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no files in ", kQuickstartFolder, "; name text files in data.path"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::unique_ptr<BatchSource> NewTokenBatchSource(const JobSpec& spec, const TokenData& data) {
  return std::make_unique<TokenBatchSource>(spec, data);
}

std::unique_ptr<BatchSource> NewEmptyBatchSource(const JobSpec& spec) {
  return std::make_unique<EmptyBatchSource>(spec);
}

absl::StatusOr<std::unique_ptr<EvaluationSource>> NewTokenEvaluationSource(const JobSpec& spec,
                                                                           const TokenData& data,
                                                                           uint64_t samples) {
  const uint64_t whole = (data.size() - 1) / spec.training.seq_len;
  if (whole == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.eval_path holds ", data.size(),
        " tokens, a sample needs training.seq_len + 1 = ", uint64_t{spec.training.seq_len} + 1));
  }
  if (samples > whole) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.eval_samples is ", samples, ", but data.eval_path holds ", whole,
        " whole samples of training.seq_len = ", spec.training.seq_len, "; 0 uses all of them"));
  }
  return std::make_unique<TokenEvaluationSource>(spec, data, samples == 0 ? whole : samples);
}

std::unique_ptr<EvaluationSource> NewEmptyEvaluationSource(const JobSpec& spec, uint64_t samples) {
  return std::make_unique<SampleRange>(spec, samples);
}

}  // namespace eps
