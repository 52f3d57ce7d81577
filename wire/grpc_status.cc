#include "wire/grpc_status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace eps {
namespace {

// The text of gRPC's client when the transport under a stream is gone.
constexpr absl::string_view kStreamRemoved = "Stream removed";

// Returns at most kMaxStatusText bytes, cut between two characters and marked at the end.
std::string Shorten(absl::string_view text) {
  if (text.size() <= kMaxStatusText) return std::string(text);
  constexpr absl::string_view kEnd = " …";
  size_t size = kMaxStatusText - kEnd.size();
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  return absl::StrCat(text.substr(0, size), kEnd);
}

bool IsKnown(grpc::StatusCode code) {
  return code >= grpc::StatusCode::OK && code <= grpc::StatusCode::UNAUTHENTICATED;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // Both enumerations are google.rpc.Code.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Shorten(status.message()));
}

absl::Status FromGrpc(const grpc::Status& status, absl::string_view context) {
  if (status.ok()) return absl::OkStatus();
  absl::StatusCode code = absl::StatusCode::kUnknown;
  if (IsKnown(status.error_code())) code = static_cast<absl::StatusCode>(status.error_code());
  if (code == absl::StatusCode::kUnknown && status.error_message() == kStreamRemoved) {
    code = absl::StatusCode::kUnavailable;
  }
  return absl::Status(code,
                      absl::StrCat(context, context.empty() ? "" : ": ", status.error_message()));
}

}  // namespace eps
