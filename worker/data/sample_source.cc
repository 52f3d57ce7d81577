#include "worker/data/sample_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/exit_code.h"
#include "base/status_macros.h"
#include "worker/data/data_file.h"
#include "worker/data/data_form.h"
#include "worker/data/mapped_file.h"
#include "worker/data/row_source.h"
#include "worker/data/token_stream.h"

namespace eps {
namespace {

using SourcePtr = std::shared_ptr<const SampleSource>;

bool IsBin(const std::string& path) { return absl::EndsWith(path, ".bin"); }

absl::Status EmptyFile(const std::string& path, const std::string& key) {
  return absl::InvalidArgumentError(absl::StrCat("data file ", path, " (", key, ") is empty"));
}

// The data is good, but not for this model.
template <class... T>
absl::Status DoesNotFit(const T&... what) {
  return WithExitCode(absl::InvalidArgumentError(absl::StrCat(what...)), ExitCode::kDataInvalid);
}

absl::StatusOr<SourcePtr> OpenBin(const std::string& path, const DataNeeds& needs,
                                  const std::string& key) {
  EPS_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path, key));
  if (file.size() == 0) return EmptyFile(path, key);
  EPS_RETURN_IF_ERROR(CheckBinForm(file.bytes(), needs.vocab_size, path, key));
  return NewBinStream(std::move(file), absl::StrCat(path, " (", key, ")"));
}

LabelKind LabelsOf(const DataHeader& header) {
  const DataColumn* const labels = header.Find("labels");
  if (labels == nullptr) return LabelKind::kTokens;
  return labels->type == DataType::kI32 ? LabelKind::kClasses : LabelKind::kNumbers;
}

bool AreTokens(LabelKind kind) {
  return kind == LabelKind::kTokens || kind == LabelKind::kMaskedTokens;
}

const char* Described(LabelKind kind) {
  switch (kind) {
    case LabelKind::kTokens:
      return "the token that follows each one";
    case LabelKind::kMaskedTokens:
      return "tokens that are hidden from it";
    case LabelKind::kClasses:
      return "a class for each sample";
    case LabelKind::kNumbers:
      return "a number for each sample";
  }
  return "";
}

// Returns channels, height and width; empty without images.
std::vector<int64_t> ImageOf(const DataHeader& header) {
  if (!header.image.has_value()) return {};
  return {header.image->channels, header.image->height, header.image->width};
}

std::string DescribedImage(const std::vector<int64_t>& image) {
  if (image.empty()) return "no images";
  return absl::StrCat("images of ", absl::StrJoin(image, " x "), " (channels x height x width)");
}

absl::Status CheckFits(const DataFile& file, const DataNeeds& needs) {
  const DataHeader& header = file.header();
  if ((header.vocab_size > 0) != (needs.vocab_size > 0)) {
    return DoesNotFit("data file ", file.name(), header.vocab_size > 0 ? " has" : " has no",
                      " tokens, and the model reads ", needs.vocab_size > 0 ? "them" : "none");
  }
  if (ImageOf(header) != needs.image) {
    return DoesNotFit("data file ", file.name(), " has ", DescribedImage(ImageOf(header)),
                      ", and the model reads ", DescribedImage(needs.image),
                      "; make the file with the --size and --channels of the model");
  }
  const bool labels_are_tokens = LabelsOf(header) == LabelKind::kTokens;
  if (labels_are_tokens != AreTokens(needs.labels) ||
      (!labels_are_tokens && LabelsOf(header) != needs.labels)) {
    return DoesNotFit("data file ", file.name(), " has as labels ", Described(LabelsOf(header)),
                      ", and the model predicts ", Described(needs.labels));
  }
  if (header.Find("loss_mask") != nullptr && needs.labels == LabelKind::kMaskedTokens) {
    return DoesNotFit("data file ", file.name(), " says which tokens are learned (loss_mask), but ",
                      "a masked language model guesses any of them; make the file with eps data ",
                      "make text");
  }
  if (header.Find("document_starts") != nullptr && !needs.separates_documents) {
    return DoesNotFit("data file ", file.name(), " has rows that several documents share, and the ",
                      "program of the model does not separate them; export the model with "
                      "--variant=packed, or make the file with --no-pack");
  }
  if (header.vocab_size > needs.vocab_size) {
    return DoesNotFit("data file ", file.name(), " has ids of a vocabulary of ", header.vocab_size,
                      ", the model's vocabulary has ", needs.vocab_size,
                      " ids (vocab_size of model.path); make the file with the model's tokenizer");
  }
  if (needs.tokenizer.empty() || header.tokenizer.empty() || needs.tokenizer == header.tokenizer) {
    return absl::OkStatus();
  }
  return DoesNotFit("data file ", file.name(), " was made with the tokenizer ", header.tokenizer,
                    ", the folder of model.path has the tokenizer ", needs.tokenizer,
                    " (SHA-256, docs/formats/data.md); make the file with the model's tokenizer");
}

absl::StatusOr<SourcePtr> OpenDataFile(const std::string& path, const DataNeeds& needs,
                                       const std::string& key) {
  EPS_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, key));
  EPS_RETURN_IF_ERROR(CheckFits(file, needs));
  if (file.header().kind == DataKind::kStream) return NewFileStream(std::move(file));
  return NewRowSource(std::move(file));
}

absl::Status NeedsByteVocabulary(const std::string& path, uint32_t vocab_size,
                                 const std::string& key) {
  return absl::InvalidArgumentError(absl::StrCat(
      "text files are read as bytes and need a model whose vocab_size is 256, but it is ",
      vocab_size, ": make token ids of ", path, " with the model's tokenizer and name them in ",
      key, ":\n  ", MakeDataCommand("text", path)));
}

absl::StatusOr<SourcePtr> OpenText(const std::vector<std::string>& paths, const DataNeeds& needs,
                                   const std::string& key) {
  std::string bytes;
  for (const std::string& path : paths) {
    EPS_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path, key));
    if (file.size() == 0) return EmptyFile(path, key);
    EPS_RETURN_IF_ERROR(CheckTextForm(file.bytes(), path, key));
    if (needs.vocab_size != kByteVocabulary) {
      return NeedsByteVocabulary(path, needs.vocab_size, key);
    }
    absl::StrAppend(&bytes, file.bytes());
  }
  return NewTextStream(std::move(bytes), absl::StrCat("the text (", key, ")"));
}

}  // namespace

DataNeeds NeedsOf(const ModelSpec& model) {
  const ModelFamily& family = FamilyOf(model.type);
  DataNeeds needs;
  needs.vocab_size = family.vocabulary(model);
  needs.labels = family.labels(model);
  needs.classes = family.classes(model);
  needs.image = family.image(model);
  needs.separates_documents = family.SeparatesDocuments(model);
  return needs;
}

absl::StatusOr<SourcePtr> SampleSource::Open(const std::vector<std::string>& paths,
                                             const DataNeeds& needs, const std::string& key) {
  if (paths.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, " names no file: give text files, one .bin or one .epsd"));
  }
  const auto ids = std::count_if(paths.begin(), paths.end(), [](const std::string& path) {
    return IsBin(path) || IsDataFileName(path);
  });
  if (!AreTokens(needs.labels) && !IsDataFileName(paths[0])) {
    return DoesNotFit("the model predicts ", Described(needs.labels), ", which ", paths[0], " (",
                      key, ") does not have; make an .epsd file:\n  ",
                      MakeDataCommand("pairs", paths[0]));
  }
  if (ids == 0) return OpenText(paths, needs, key);
  if (paths.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, " names ", paths.size(), " files, ", ids,
                     " of them .bin or .epsd: give text files only, or one .bin or .epsd alone"));
  }
  return IsBin(paths[0]) ? OpenBin(paths[0], needs, key) : OpenDataFile(paths[0], needs, key);
}

}  // namespace eps
