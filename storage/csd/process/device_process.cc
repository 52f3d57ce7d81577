#include "storage/csd/process/device_process.h"

#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "storage/csd/process/child.h"
#include "storage/csd/process/exchange.h"
#include "storage/csd/process/frames.h"
#include "storage/records/sealed_record.h"

namespace eps {

using csd::Command;

namespace {

// The device answers between two other commands, unless it hangs.
constexpr std::chrono::seconds kReportPatience{1};

absl::Span<const uint8_t> BytesOf(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceProcess>> DeviceProcess::Start(
    const DeviceProcessOptions& options, MemoryAccount* account) {
  const FileDeviceOptions& device = options.device;
  const std::string name = absl::StrCat(device.name, " (", device.path, ")");
  EPS_ASSIGN_OR_RETURN(
      std::unique_ptr<csd::Child> child,
      csd::Child::Start(options.program,
                        {device.name, device.path, absl::StrCat(device.media_bytes),
                         absl::StrCat(device.dram_bytes), ToText(options.rates),
                         options.updater_plugin, options.codec_plugin}));
  Command start;
  start.kind = Command::Kind::kStart;
  start.number = 1;
  start.data_bytes = options.job.size();
  absl::Status answer;
  const absl::Status ready =
      csd::Exchange(child->socket(0), start, {BytesOf(options.job), {}, nullptr},
                    std::chrono::steady_clock::now() + options.start_timeout, &answer);
  if (absl::IsDeadlineExceeded(ready)) {
    return absl::UnavailableError(absl::StrCat("device ", name, " was not ready after ",
                                               options.start_timeout.count(), " ms"));
  }
  if (!ready.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "device ", name, " ", child->End(std::chrono::milliseconds(2000)), " during its start"));
  }
  EPS_RETURN_IF_ERROR(answer);
  EPS_RETURN_IF_ERROR(account->TryCharge(MemoryKind::kState, device.dram_bytes));
  return std::unique_ptr<DeviceProcess>(
      new DeviceProcess(DeviceInfo{device.name, device.media_bytes, device.dram_bytes},
                        std::make_unique<csd::HostLanes>(name, std::move(child),
                                                         options.command_timeout, options.lost),
                        options.link_or_null, account));
}

DeviceProcess::DeviceProcess(DeviceInfo info, std::unique_ptr<csd::HostLanes> lanes,
                             std::shared_ptr<csd::HostLink> link_or_null, MemoryAccount* account)
    : info_(std::move(info)),
      link_(std::move(link_or_null)),
      lanes_(std::move(lanes)),
      account_(account) {}

DeviceProcess::~DeviceProcess() { account_->Release(MemoryKind::kState, info_.dram_bytes); }

absl::StatusOr<std::string> DeviceProcess::Ask(const Command& command) const {
  std::string data;
  std::promise<absl::Status> ended;
  lanes_->Run(
      {command, {{}, {}, &data}, [&](absl::Status status) { ended.set_value(std::move(status)); }});
  EPS_RETURN_IF_ERROR(ended.get_future().get());
  return data;
}

absl::StatusOr<Place> DeviceProcess::Allocate(uint64_t bytes) {
  Command command;
  command.kind = Command::Kind::kAllocate;
  command.bytes = bytes;
  EPS_ASSIGN_OR_RETURN(const std::string offset, Ask(command));
  RecordReader reader(offset);
  const Place place = {Place::Where::kDram, reader.U64()};
  if (reader.complete()) return place;
  return absl::DataLossError(absl::StrCat("device ", info_.name, ": the answer to ",
                                          csd::Describe(command), " is damaged"));
}

Device::Done DeviceProcess::Counting(Direction direction, Purpose purpose, uint64_t bytes,
                                     Done done) {
  return [this, direction, purpose, bytes, done = std::move(done)](absl::Status status) {
    if (status.ok()) host_link_.Add(Link::kHost, direction, purpose, bytes);
    done(std::move(status));
  };
}

void DeviceProcess::HostWrite(absl::Span<const uint8_t> from, Place to, Purpose purpose,
                              Done done) {
  Command command;
  command.kind = Command::Kind::kHostWrite;
  command.purpose = purpose;
  command.to = to;
  command.bytes = from.size();
  command.data_bytes = from.size();
  lanes_->Run({command,
               {from, {}, nullptr, Down()},
               Counting(Direction::kWritten, purpose, from.size(), std::move(done))});
}

void DeviceProcess::HostRead(Place from, absl::Span<uint8_t> into, Purpose purpose, Done done) {
  Command command;
  command.kind = Command::Kind::kHostRead;
  command.purpose = purpose;
  command.from = from;
  command.bytes = into.size();
  lanes_->Run({command,
               {{}, into, nullptr, Up()},
               Counting(Direction::kRead, purpose, into.size(), std::move(done))});
}

void DeviceProcess::Copy(Place from, Place to, uint64_t bytes, Purpose purpose, Done done) {
  Command command;
  command.kind = Command::Kind::kCopy;
  command.purpose = purpose;
  command.from = from;
  command.to = to;
  command.bytes = bytes;
  lanes_->Run({command, {}, std::move(done)});
}

void DeviceProcess::Run(std::string kernel, Place memory, uint64_t bytes, KernelDone done) {
  // In memory until the command has completed.
  struct Texts {
    std::string kernel;
    std::string result;
  };
  auto texts = std::make_shared<Texts>(Texts{std::move(kernel), ""});
  Command command;
  command.kind = Command::Kind::kRun;
  command.to = memory;
  command.bytes = bytes;
  command.data_bytes = texts->kernel.size();
  lanes_->Run({command,
               {BytesOf(texts->kernel), {}, &texts->result},
               [texts, done = std::move(done)](absl::Status status) {
                 if (status.ok()) return done(std::move(texts->result));
                 done(std::move(status));
               }});
}

void DeviceProcess::Sync(Done done) {
  Command command;
  command.kind = Command::Kind::kSync;
  lanes_->Run({command, {}, std::move(done)});
}

absl::StatusOr<LinkBytes> DeviceProcess::DeviceLedger() const {
  Command command;
  command.kind = Command::Kind::kLinkBytes;
  EPS_ASSIGN_OR_RETURN(const std::string data, Ask(command));
  return csd::DecodeLinkBytes(data);
}

LinkBytes DeviceProcess::link_bytes() const {
  // The command may outlive this call.
  struct Answer {
    std::string data;
    std::promise<absl::Status> ended;
  };
  auto answer = std::make_shared<Answer>();
  std::future<absl::Status> ended = answer->ended.get_future();
  Command command;
  command.kind = Command::Kind::kLinkBytes;
  lanes_->Run({command, {{}, {}, &answer->data}, [answer](absl::Status status) {
                 answer->ended.set_value(std::move(status));
               }});
  const bool came =
      ended.wait_for(kReportPatience) == std::future_status::ready && ended.get().ok();
  MutexLock lock(&mu_);
  if (came) {
    const absl::StatusOr<LinkBytes> ledger = csd::DecodeLinkBytes(answer->data);
    if (ledger.ok()) reported_ = ledger->WithoutHost();
  }
  LinkBytes bytes = host_link_.Read();
  bytes.Add(reported_);
  return bytes;
}

}  // namespace eps
