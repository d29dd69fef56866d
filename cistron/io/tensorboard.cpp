#include "cistron/io/tensorboard.h"

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "cistron/core/error.h"
#include "cistron/io/checksum.h"

namespace cistron::io {
namespace {

constexpr size_t kBuffer = 1 << 16;

// Protocol buffers' wire format: a key is (field << 3 | type), type 0 a varint, 1 eight bytes, 2 length-delimited, 5 four bytes.
void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

template <class T>
void put_fixed(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void put_text(std::string& out, int field, std::string_view text) {
  put_varint(out, static_cast<uint64_t>(field << 3 | 2));
  put_varint(out, text.size());
  out += text;
}

double seconds_now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string event_of(double wall_time) {
  std::string event = "\x09";  // Event.wall_time = 1
  put_fixed(event, wall_time);
  return event;
}

std::string event_of(double wall_time, int64_t step) {
  std::string event = event_of(wall_time);
  event += '\x10';  // Event.step = 2
  put_varint(event, static_cast<uint64_t>(step));
  return event;
}

std::string session_start(int64_t step) {
  std::string event = event_of(seconds_now(), step);
  put_text(event, 7, "\x08\x01");  // Event.session_log = 7, of which status = 1 is START = 1
  return event;
}

std::string file_name() {
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  return fmt::format("events.out.tfevents.{}.{}.{}", static_cast<int64_t>(seconds_now()), host, getpid());
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

}  // namespace

EventWriter::EventWriter(const std::filesystem::path& directory, int64_t first_step) : file_(directory / file_name()) {
  std::string event = event_of(seconds_now());
  put_text(event, 3, "brain.Event:2");  // Event.file_version = 3
  append(event);
  if (first_step > 1) append(session_start(first_step));
  flush();
}

EventWriter::~EventWriter() {
  try {
    flush();
  } catch (...) {  // whoever must know has called flush
  }
}

void EventWriter::scalar(std::string_view tag, int64_t step, double value, double wall_time) {
  std::string summary_value;
  put_text(summary_value, 1, tag);  // Summary.Value.tag = 1
  summary_value += '\x15';          // Summary.Value.simple_value = 2
  put_fixed(summary_value, static_cast<float>(value));
  std::string summary;
  put_text(summary, 1, summary_value);  // Summary.value = 1
  std::string event = event_of(wall_time > 0 ? wall_time : seconds_now(), step);
  put_text(event, 5, summary);  // Event.summary = 5
  append(event);
  if (buffer_.size() >= kBuffer) flush();
}

void EventWriter::append(std::string_view event) {
  std::string length;
  put_fixed(length, static_cast<uint64_t>(event.size()));
  buffer_ += length;
  put_fixed(buffer_, masked_crc(length));
  buffer_ += event;
  put_fixed(buffer_, masked_crc(event));
}

void EventWriter::flush() {
  const std::string pending = std::exchange(buffer_, {});  // a failed write is not tried again by the destructor
  file_.write(pending);
}

void EventWriter::sync() {
  flush();
  file_.sync();
}

}  // namespace cistron::io
