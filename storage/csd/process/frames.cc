#include "storage/csd/process/frames.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/job/job_spec.h"
#include "base/status_macros.h"
#include "storage/records/sealed_record.h"

namespace eps::csd {
namespace {

constexpr absl::string_view kCommandKey = "device command";
constexpr absl::string_view kReplyKey = "device reply";

void Write(const Place& place, RecordWriter* writer) {
  writer->U32(static_cast<uint32_t>(place.where));
  writer->U64(place.offset);
}

// Returns false if there is no such place.
bool Read(RecordReader* reader, Place* place) {
  const uint32_t where = reader->U32();
  place->where = static_cast<Place::Where>(where);
  place->offset = reader->U64();
  return where <= static_cast<uint32_t>(Place::Where::kDram);
}

// Calls `visit(link, direction, purpose)` for each counter.
template <typename Visit>
void ForEachCounter(Visit visit) {
  for (size_t link = 0; link < kLinks; ++link) {
    for (size_t direction = 0; direction < kDirections; ++direction) {
      for (size_t purpose = 0; purpose < kPurposes; ++purpose) {
        visit(static_cast<Link>(link), static_cast<Direction>(direction),
              static_cast<Purpose>(purpose));
      }
    }
  }
}

bool HasLegalData(const Command& command) {
  switch (command.kind) {
    case Command::Kind::kStart:
      return command.data_bytes <= kMaxSpecTextBytes;
    case Command::Kind::kHostWrite:
      return command.data_bytes == command.bytes;
    case Command::Kind::kRun:
      return command.data_bytes <= kMaxKernelBytes;
    default:
      return command.data_bytes == 0;
  }
}

}  // namespace

std::string Describe(const Command& command) {
  switch (command.kind) {
    case Command::Kind::kStart:
      return "its start";
    case Command::Kind::kHostWrite:
      return absl::StrCat("HostWrite of ", command.bytes, " bytes to ", Describe(command.to));
    case Command::Kind::kHostRead:
      return absl::StrCat("HostRead of ", command.bytes, " bytes from ", Describe(command.from));
    case Command::Kind::kCopy:
      return absl::StrCat("Copy of ", command.bytes, " bytes from ", Describe(command.from), " to ",
                          Describe(command.to));
    case Command::Kind::kRun:
      return absl::StrCat("Run over ", command.bytes, " bytes at ", Describe(command.to));
    case Command::Kind::kSync:
      return "Sync";
    case Command::Kind::kAllocate:
      return absl::StrCat("Allocate of ", command.bytes, " bytes");
    case Command::Kind::kLinkBytes:
      return "LinkBytes";
  }
  return "?";
}

std::string Encode(const Command& command) {
  RecordWriter writer;
  writer.U32(static_cast<uint32_t>(command.kind));
  writer.U32(static_cast<uint32_t>(command.purpose));
  writer.U64(command.number);
  Write(command.from, &writer);
  Write(command.to, &writer);
  writer.U64(command.bytes);
  writer.U64(command.data_bytes);
  std::string head = SealRecord(kCommandKey, std::move(writer).Take());
  EPS_CHECK(head.size() == kCommandBytes);
  return head;
}

std::string Encode(const Reply& reply) {
  RecordWriter writer;
  writer.U32(static_cast<uint32_t>(reply.code));
  writer.U64(reply.number);
  writer.U64(reply.bytes);
  std::string head = SealRecord(kReplyKey, std::move(writer).Take());
  EPS_CHECK(head.size() == kReplyBytes);
  return head;
}

absl::StatusOr<Command> DecodeCommand(absl::string_view head) {
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(kCommandKey, head));
  RecordReader reader(fields);
  Command command;
  const uint32_t kind = reader.U32();
  const uint32_t purpose = reader.U32();
  command.kind = static_cast<Command::Kind>(kind);
  command.purpose = static_cast<Purpose>(purpose);
  command.number = reader.U64();
  const bool places = Read(&reader, &command.from) && Read(&reader, &command.to);
  command.bytes = reader.U64();
  command.data_bytes = reader.U64();
  if (!places || !HasLegalData(command) || !reader.complete() || kind >= Command::kKinds ||
      purpose >= kPurposes || command.number == 0) {
    return DamagedRecord(kCommandKey, "a field has no meaning");
  }
  return command;
}

absl::StatusOr<Reply> DecodeReply(absl::string_view head) {
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(kReplyKey, head));
  RecordReader reader(fields);
  Reply reply;
  const uint32_t code = reader.U32();
  reply.code = static_cast<absl::StatusCode>(code);
  reply.number = reader.U64();
  reply.bytes = reader.U64();
  const uint64_t most = code == 0 ? kSliceBytes : kMaxErrorBytes;
  if (!reader.complete() || code > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated) ||
      reply.bytes > most) {
    return DamagedRecord(kReplyKey, "a field has no meaning");
  }
  return reply;
}

std::string EncodeLinkBytes(const LinkBytes& bytes) {
  RecordWriter writer;
  ForEachCounter([&](Link link, Direction direction, Purpose purpose) {
    writer.U64(bytes.of(link, direction, purpose));
  });
  return std::move(writer).Take();
}

absl::StatusOr<LinkBytes> DecodeLinkBytes(absl::string_view data) {
  RecordReader reader(data);
  LinkBytes bytes;
  ForEachCounter([&](Link link, Direction direction, Purpose purpose) {
    bytes.Add(link, direction, purpose, reader.U64());
  });
  if (!reader.complete()) return absl::DataLossError("the counters of the links are damaged");
  return bytes;
}

}  // namespace eps::csd
