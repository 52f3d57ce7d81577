#include "worker/data/data_file.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/exit_code.h"
#include "base/status_macros.h"

namespace eps {

absl::StatusOr<DataFile> DataFile::Open(const std::string& path, const std::string& key) {
  EPS_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path, key));
  std::string name = absl::StrCat(path, " (", key, ")");
  EPS_ASSIGN_OR_RETURN(DataHeader header, ParseDataHeader(file.bytes().substr(0, kDataHeaderBytes),
                                                          file.size(), name));
  DataFile data(std::move(name), std::move(file), std::move(header));
  if (data.file_.size() <= kDigestedBytes) EPS_RETURN_IF_ERROR(data.CheckDigests());
  return data;
}

absl::Status DataFile::CheckDigests() const {
  for (const DataColumn& column : header_.columns) {
    const std::string found = ToHex(Sha256Of(bytes(column)));
    if (found == column.sha256) continue;
    return WithExitCode(
        absl::DataLossError(absl::StrCat(
            "data file ", name_, ": column ", column.name, " (bytes ", column.offset, " to ",
            column.offset + column.bytes, ") is damaged: it has SHA-256 ", found,
            ", the header says ", column.sha256, "; make the file again, or copy it again")),
        ExitCode::kDataInvalid);
  }
  return absl::OkStatus();
}

bool IsDataFileName(absl::string_view path) { return absl::EndsWith(path, ".epsd"); }

}  // namespace eps
