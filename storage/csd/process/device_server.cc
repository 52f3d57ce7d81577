#include "storage/csd/process/device_server.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <future>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "storage/records/sealed_record.h"

namespace eps::csd {
namespace {

// Reads until `size` bytes have come. Returns the number of bytes before the end of the socket.
absl::StatusOr<size_t> ReadAll(int socket, void* into, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = read(socket, static_cast<char*>(into) + done, size - done);
    if (n == 0) break;
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("the host is gone: ", std::strerror(errno)));
    }
  }
  return done;
}

absl::Status WriteAll(int socket, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(socket, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("the host is gone: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::Status SendReply(int socket, uint64_t number, absl::string_view data) {
  EPS_RETURN_IF_ERROR(WriteAll(socket, Encode(Reply{absl::StatusCode::kOk, number, data.size()})));
  return WriteAll(socket, data);
}

absl::Status SendError(int socket, uint64_t number, const absl::Status& status) {
  const absl::string_view text = status.message().substr(0, kMaxErrorBytes);
  EPS_RETURN_IF_ERROR(WriteAll(socket, Encode(Reply{status.code(), number, text.size()})));
  return WriteAll(socket, text);
}

// Reads the next command. Returns nullopt if the host has closed the lane.
absl::StatusOr<std::optional<Command>> ReceiveCommand(int socket) {
  std::array<char, kCommandBytes> head;
  EPS_ASSIGN_OR_RETURN(const size_t size, ReadAll(socket, head.data(), head.size()));
  if (size == 0) return std::nullopt;
  EPS_ASSIGN_OR_RETURN(const Command command, DecodeCommand(absl::string_view(head.data(), size)));
  return command;
}

// Reads the data of a command.
absl::StatusOr<std::string> ReceiveData(int socket, const Command& command) {
  std::string data(static_cast<size_t>(command.data_bytes), '\0');
  EPS_ASSIGN_OR_RETURN(const size_t size, ReadAll(socket, data.data(), data.size()));
  if (size < data.size()) return absl::UnavailableError("the host is gone");
  return data;
}

// Waits for an operation of the device, which ends with a T.
template <typename T, typename Begin>
T Await(Begin begin) {
  std::promise<T> result;
  begin([&](T value) { result.set_value(std::move(value)); });
  return result.get_future().get();
}

// The commands of one lane. Thread-compatible.
class Lane {
 public:
  Lane(int socket, const LaneDevice& device, absl::Span<uint8_t> buffer)
      : socket_(socket),
        device_(device.device),
        pace_(device.pace),
        kernels_(device.kernels_or_null),
        buffer_(buffer) {}

  // Carries out a command and replies. An error means that the lane has ended.
  absl::Status Run(const Command& command);

 private:
  absl::Status HostWrite(const Command& command);
  absl::Status HostRead(const Command& command);
  absl::Status Copy(const Command& command);
  absl::Status RunKernel(const Command& command);
  // Replies without data, or with the error.
  absl::Status Answer(const Command& command, const absl::Status& status);

  const int socket_;
  Device* const device_;
  DevicePace* const pace_;
  const KernelRunner* const kernels_;  // may be null
  const absl::Span<uint8_t> buffer_;
};

absl::Status Lane::Answer(const Command& command, const absl::Status& status) {
  if (!status.ok()) return SendError(socket_, command.number, status);
  return SendReply(socket_, command.number, "");
}

absl::Status Lane::HostWrite(const Command& command) {
  // The data has to be taken from the socket, even if it cannot be written.
  absl::Status status = CheckTransfer(device_->info(), "HostWrite", command.to, command.bytes);
  PacedTransfer transfer = pace_->HostWrite(command.to);
  for (uint64_t at = 0; at < command.bytes;) {
    const absl::Span<uint8_t> slice =
        buffer_.first(static_cast<size_t>(std::min(kSliceBytes, command.bytes - at)));
    EPS_ASSIGN_OR_RETURN(const size_t size, ReadAll(socket_, slice.data(), slice.size()));
    if (size < slice.size()) return absl::UnavailableError("the host is gone");
    if (status.ok()) {
      status = Await<absl::Status>([&](Device::Done done) {
        device_->HostWrite(slice, command.to.At(at), command.purpose, std::move(done));
      });
      transfer.Await(slice.size());
    }
    at += slice.size();
  }
  return Answer(command, status);
}

absl::Status Lane::HostRead(const Command& command) {
  const absl::Status fits = CheckTransfer(device_->info(), "HostRead", command.from, command.bytes);
  if (!fits.ok()) return Answer(command, fits);
  PacedTransfer transfer = pace_->HostRead(command.from);
  for (uint64_t at = 0; at < command.bytes;) {
    const absl::Span<uint8_t> slice =
        buffer_.first(static_cast<size_t>(std::min(kSliceBytes, command.bytes - at)));
    const absl::Status status = Await<absl::Status>([&](Device::Done done) {
      device_->HostRead(command.from.At(at), slice, command.purpose, std::move(done));
    });
    if (!status.ok()) return Answer(command, status);
    transfer.Await(slice.size());
    EPS_RETURN_IF_ERROR(
        SendReply(socket_, command.number,
                  absl::string_view(reinterpret_cast<const char*>(slice.data()), slice.size())));
    at += slice.size();
  }
  return absl::OkStatus();
}

absl::Status Lane::Copy(const Command& command) {
  PacedTransfer transfer = pace_->Copy(command.from);
  const absl::Status status = Await<absl::Status>([&](Device::Done done) {
    device_->Copy(command.from, command.to, command.bytes, command.purpose, std::move(done));
  });
  if (status.ok()) transfer.Await(command.bytes);
  return Answer(command, status);
}

absl::Status Lane::RunKernel(const Command& command) {
  EPS_ASSIGN_OR_RETURN(std::string kernel, ReceiveData(socket_, command));
  const UpdaterWork work = kernels_ != nullptr ? kernels_->WorkOf(kernel) : UpdaterWork();
  PacedTransfer transfer = pace_->Update(work.decompresses);
  const auto result = Await<absl::StatusOr<std::string>>([&](Device::KernelDone done) {
    device_->Run(std::move(kernel), command.to, command.bytes, std::move(done));
  });
  if (!result.ok()) return Answer(command, result.status());
  transfer.Await(work.bytes);
  return SendReply(socket_, command.number, *result);
}

absl::Status Lane::Run(const Command& command) {
  switch (command.kind) {
    case Command::Kind::kStart:
      return absl::DataLossError("a second start");
    case Command::Kind::kHostWrite:
      return HostWrite(command);
    case Command::Kind::kHostRead:
      return HostRead(command);
    case Command::Kind::kCopy:
      return Copy(command);
    case Command::Kind::kRun:
      return RunKernel(command);
    case Command::Kind::kSync:
      return Answer(
          command, Await<absl::Status>([&](Device::Done done) { device_->Sync(std::move(done)); }));
    case Command::Kind::kAllocate: {
      const absl::StatusOr<Place> place = device_->Allocate(command.bytes);
      if (!place.ok()) return Answer(command, place.status());
      RecordWriter offset;
      offset.U64(place->offset);
      return SendReply(socket_, command.number, std::move(offset).Take());
    }
    case Command::Kind::kLinkBytes:
      return SendReply(socket_, command.number, EncodeLinkBytes(device_->link_bytes()));
  }
  return absl::InternalError("no such command");
}

}  // namespace

absl::StatusOr<Start> ReceiveStart(int socket) {
  EPS_ASSIGN_OR_RETURN(const std::optional<Command> command, ReceiveCommand(socket));
  if (!command.has_value()) return absl::UnavailableError("the host is gone");
  if (command->kind != Command::Kind::kStart) {
    return absl::DataLossError(absl::StrCat("the first command is ", Describe(*command)));
  }
  EPS_ASSIGN_OR_RETURN(std::string job, ReceiveData(socket, *command));
  return Start{command->number, std::move(job)};
}

absl::Status AnswerStart(int socket, const Start& start, const absl::Status& status) {
  return status.ok() ? SendReply(socket, start.number, "")
                     : SendError(socket, start.number, status);
}

absl::Status ServeLane(int socket, const LaneDevice& device, absl::Span<uint8_t> buffer) {
  Lane lane(socket, device, buffer);
  while (true) {
    EPS_ASSIGN_OR_RETURN(const std::optional<Command> command, ReceiveCommand(socket));
    if (!command.has_value()) return absl::OkStatus();
    EPS_RETURN_IF_ERROR(lane.Run(*command));
  }
}

}  // namespace eps::csd
