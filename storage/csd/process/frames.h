#ifndef EPS_STORAGE_CSD_PROCESS_FRAMES_H_
#define EPS_STORAGE_CSD_PROCESS_FRAMES_H_

// The frames between a host and a device's process. There is no shared memory: all data crosses a
// socket.
//
// A command is a head, then its data. Its replies are heads with data or an error's text. A
// HostRead has a reply for each slice, until all its bytes have come or a reply has an error; every
// other command has one reply. A lane (a socket) carries one command at a time. The first command,
// on the first lane, is a Start; its reply comes once the device is ready or cannot start.
//
// A head is a record (storage/records/sealed_record.h), which ends with a CRC32C. Fields of a
// command: u32 kind, u32 purpose, u64 number, u32 where and u64 offset of `from`, the same of `to`,
// u64 bytes, u64 bytes of data that follow. Fields of a reply: u32 status code, u64 number, u64
// bytes that follow. All numbers are little-endian.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/csd/device.h"

namespace eps::csd {

// The lanes of a device.
inline constexpr int kLaneCount = 4;
// The descriptor of the first lane in the device's process; the others follow.
inline constexpr int kFirstLane = 3;
// The most data in one reply, and the size of each lane's buffer in the device.
inline constexpr uint64_t kSliceBytes = uint64_t{1} << 20;
// The longest text of an error in a reply; longer ones are cut.
inline constexpr uint64_t kMaxErrorBytes = 4096;

// One operation of a device, as its host asks for it. Plain value.
struct Command {
  enum class Kind : uint32_t {
    kStart,      // data: the text of the job's spec, or nothing for a device without kernels
    kHostWrite,  // to, bytes; data: those bytes
    kHostRead,   // from, bytes
    kCopy,       // from, to, bytes
    kRun,        // to, bytes; data: the kernel; the reply's data is its result
    kSync,
    kAllocate,   // bytes; the reply's data is the offset, a u64
    kLinkBytes,  // the reply's data is LinkBytes, see EncodeLinkBytes
  };
  static constexpr uint32_t kKinds = 8;

  Kind kind = Kind::kSync;
  Purpose purpose = Purpose::kControl;
  uint64_t number = 0;  // not 0; counts the commands of all lanes
  Place from;
  Place to;
  uint64_t bytes = 0;
  uint64_t data_bytes = 0;  // that follow the head
};

// "HostWrite of 4096 bytes at 8192 of the medium"
std::string Describe(const Command& command);

// The head of a reply. Plain value.
struct Reply {
  absl::StatusCode code = absl::StatusCode::kOk;
  uint64_t number = 0;
  uint64_t bytes = 0;  // of data; of text if the code is not OK
};

inline constexpr uint64_t kCommandBytes = 64;
inline constexpr uint64_t kReplyBytes = 28;

// Returns kCommandBytes and kReplyBytes bytes.
std::string Encode(const Command& command);
std::string Encode(const Reply& reply);
// DataLoss for a damaged head, and for one whose fields no sender writes.
absl::StatusOr<Command> DecodeCommand(absl::string_view head);
absl::StatusOr<Reply> DecodeReply(absl::string_view head);

// Counters, in the order of link, direction and purpose, as u64.
std::string EncodeLinkBytes(const LinkBytes& bytes);
// DataLoss for another size.
absl::StatusOr<LinkBytes> DecodeLinkBytes(absl::string_view data);

}  // namespace eps::csd

#endif  // EPS_STORAGE_CSD_PROCESS_FRAMES_H_
