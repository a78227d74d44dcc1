// Calls of the system on files, with what file systems of the network answer instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace twell::io {

// open(), again where a signal interrupted it; closed on exec; new files are for all whom the umask
// admits. Negative where it fails, with errno.
int open_file(const std::filesystem::path& path, int flags);

// To read, without waiting for a pipe's writer. Throws Error (environment).
int open_to_read(const std::filesystem::path& path);

// Fills `out` from the beginning of the file, however few bytes one call gives; -> how many there
// were. Throws Error (environment) naming `path`.
std::size_t read_bytes(int descriptor, std::span<std::byte> out, const std::filesystem::path& path);

// Writes all of `bytes` at `offset`, however few one call takes, and moves `offset` on. -> the
// error, 0 where there is none.
int write_bytes(int descriptor, std::span<const std::byte> bytes, std::uint64_t& offset);

// fsync(), again where a signal interrupted it. -> the error; 0 where there is none, and where the
// file system has no such operation for this descriptor.
int sync(int descriptor);

// Whether the error says that a file system has no such operation, rather than that it failed:
// locks, links, fsync of directories and mappings are all missing somewhere.
bool is_missing_operation(int error);

}  // namespace twell::io
