#include "wire/payload_message.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "grpcpp/impl/grpc_library.h"

namespace eps {
namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

constexpr char kPayloadTag = (kPayloadField << 3) | kLengthDelimited;
static_assert(kPayloadField < 16, "the payload's tag is one byte");
constexpr size_t kMaxVarintBytes = 10;

void DropBytes(void* bytes) { delete static_cast<Bytes*>(bytes); }

absl::Status Malformed(absl::string_view what, size_t offset) {
  return absl::InvalidArgumentError(absl::StrCat("malformed message: ", what, " at byte ", offset));
}

// Reads a message that consists of several slices. The callers check every size against left().
class Cursor {
 public:
  Cursor(const std::vector<grpc::Slice>& slices, size_t size) : slices_(slices), left_(size) {}

  size_t left() const { return left_; }
  size_t offset() const { return offset_; }

  // REQUIRES left() > 0.
  uint8_t Next() {
    SkipEmpty();
    const uint8_t byte = slices_[slice_].begin()[position_];
    Advance(1);
    return byte;
  }

  // Appends the next `n` bytes to *out. REQUIRES n <= left().
  void Copy(size_t n, std::string* out) {
    ForPieces(n, [&](const grpc::Slice& slice, size_t from, size_t size) {
      out->append(reinterpret_cast<const char*>(slice.begin()) + from, size);
    });
  }

  // Appends references to the next `n` bytes. REQUIRES n <= left().
  void Reference(size_t n, std::vector<grpc::Slice>* out) {
    ForPieces(n, [&](const grpc::Slice& slice, size_t from, size_t size) {
      out->push_back(slice.sub(from, from + size));
    });
  }

 private:
  void SkipEmpty() {
    while (position_ == slices_[slice_].size()) {
      ++slice_;
      position_ = 0;
    }
  }

  void Advance(size_t n) {
    position_ += n;
    offset_ += n;
    left_ -= n;
  }

  template <class Visitor>
  void ForPieces(size_t n, Visitor visit) {
    while (n > 0) {
      SkipEmpty();
      const size_t size = std::min(n, slices_[slice_].size() - position_);
      visit(slices_[slice_], position_, size);
      Advance(size);
      n -= size;
    }
  }

  const std::vector<grpc::Slice>& slices_;
  size_t slice_ = 0;
  size_t position_ = 0;  // within the slice
  size_t offset_ = 0;    // within the message
  size_t left_;
};

// Reads a varint and appends its bytes unchanged to *raw.
absl::Status ReadVarint(Cursor* cursor, uint64_t* value, std::string* raw) {
  *value = 0;
  for (size_t i = 0; i < kMaxVarintBytes; ++i) {
    if (cursor->left() == 0) return Malformed("it ends within a number", cursor->offset());
    const uint8_t byte = cursor->Next();
    raw->push_back(static_cast<char>(byte));
    *value |= uint64_t{byte & 0x7fu} << (7 * i);
    if ((byte & 0x80) == 0) return absl::OkStatus();
  }
  return Malformed("a number of more than 10 bytes", cursor->offset());
}

absl::Status TooShort(const Cursor& cursor, uint64_t field, uint64_t wanted) {
  return Malformed(
      absl::StrCat("field ", field, " says ", wanted, " bytes, ", cursor.left(), " are left"),
      cursor.offset());
}

// Copies one field's value, which follows its tag, to *small.
absl::Status CopyValue(uint64_t tag, Cursor* cursor, std::string* small) {
  const uint64_t field = tag >> 3;
  uint64_t size = 0;
  switch (static_cast<uint32_t>(tag & 7)) {
    case kVarint:
      return ReadVarint(cursor, &size, small);
    case kFixed64:
      size = 8;
      break;
    case kFixed32:
      size = 4;
      break;
    case kLengthDelimited:
      EPS_RETURN_IF_ERROR(ReadVarint(cursor, &size, small));
      break;
    default:
      return Malformed(absl::StrCat("field ", field, " of wire type ", tag & 7), cursor->offset());
  }
  if (size > cursor->left()) return TooShort(*cursor, field, size);
  cursor->Copy(size, small);
  return absl::OkStatus();
}

absl::Status TakePayload(Cursor* cursor, std::vector<grpc::Slice>* payload) {
  uint64_t size = 0;
  std::string length_bytes;
  EPS_RETURN_IF_ERROR(ReadVarint(cursor, &size, &length_bytes));
  if (size > cursor->left()) return TooShort(*cursor, kPayloadField, size);
  if (size > kMaxSliceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a payload of ", size, " bytes in one message; ",
                                                   "at most ", kMaxSliceBytes, " are allowed"));
  }
  cursor->Reference(size, payload);
  return absl::OkStatus();
}

}  // namespace

grpc::ByteBuffer JoinPayload(const google::protobuf::MessageLite& header, const Bytes& payload) {
  EPS_CHECK_MSG(payload.size() <= kMaxSliceBytes, "payload of " << payload.size() << " bytes");
  std::string head;
  EPS_CHECK(header.SerializeToString(&head));
  std::vector<grpc::Slice> slices;
  if (payload.empty()) {
    slices.emplace_back(head);
    return grpc::ByteBuffer(slices.data(), slices.size());
  }
  head.push_back(kPayloadTag);
  size_t rest = payload.size();
  for (; rest >= 0x80; rest >>= 7) head.push_back(static_cast<char>(0x80 | (rest & 0x7f)));
  head.push_back(static_cast<char>(rest));
  slices.emplace_back(head);
  // Nothing writes through the slice; gRPC's signature only lacks the const.
  slices.emplace_back(const_cast<uint8_t*>(payload.data()), payload.size(), &DropBytes,
                      new Bytes(payload));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::Status SplitPayload(const grpc::ByteBuffer& message, google::protobuf::MessageLite* header,
                          std::vector<grpc::Slice>* payload) {
  payload->clear();
  const size_t size = message.Length();
  if (size > kMaxMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", size, " bytes; at most ", kMaxMessageBytes, " are allowed"));
  }
  std::vector<grpc::Slice> slices;
  if (size > 0 && !message.Dump(&slices).ok()) {
    return absl::InvalidArgumentError("malformed message: it cannot be decompressed");
  }
  // Decompression may have made the message longer than Length() says.
  size_t total = 0;
  for (const grpc::Slice& slice : slices) total += slice.size();
  if (total > kMaxMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", total, " bytes; at most ", kMaxMessageBytes, " are allowed"));
  }

  std::string small;
  bool has_payload = false;
  Cursor cursor(slices, total);
  while (cursor.left() > 0) {
    uint64_t tag = 0;
    const size_t before = small.size();
    EPS_RETURN_IF_ERROR(ReadVarint(&cursor, &tag, &small));
    // Protobuf would read the low 32 bits of a longer tag as the field's number.
    if (tag > UINT32_MAX) return Malformed("a tag of more than 32 bits", cursor.offset());
    if ((tag >> 3) != kPayloadField) {
      EPS_RETURN_IF_ERROR(CopyValue(tag, &cursor, &small));
      continue;
    }
    if (tag != static_cast<uint64_t>(kPayloadTag)) {
      return Malformed(absl::StrCat("the payload has wire type ", tag & 7), cursor.offset());
    }
    if (has_payload) return Malformed("a second payload", cursor.offset());
    has_payload = true;
    small.resize(before);
    EPS_RETURN_IF_ERROR(TakePayload(&cursor, payload));
  }
  if (!header->ParseFromString(small)) {
    payload->clear();
    return absl::InvalidArgumentError(absl::StrCat("malformed message: the fields of ",
                                                   header->GetTypeName(), " cannot be read"));
  }
  return absl::OkStatus();
}

}  // namespace eps
