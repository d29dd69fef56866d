"""A disk that remembers what has been synced: log_writes.cpp's records are played on it, and it tells what it may hold once the power goes.

What POSIX promises and no more: a file's bytes are safe when it was synced, an entry of a folder when the folder was. Of what was not,
anything may be there: a folder's changes up to any one of them or any selection, and any of a file's writes, whatever came first."""

import random


class File:
    def __init__(self):
        self.safe, self.pending, self.size = b"", [], 0

    def write(self, at, data):
        at = self.size if at < 0 else at
        self.pending.append((at, data))
        self.size = max(self.size, at + len(data))

    def bytes_with(self, chosen):
        data = bytearray(self.safe)
        for at, piece in chosen:
            data.extend(bytes(max(0, at + len(piece) - len(data))))
            data[at:at + len(piece)] = piece
        return bytes(data)

    def sync(self):
        self.safe, self.pending = self.bytes_with(self.pending), []

    def hold(self, choose):
        return self.bytes_with(choose.writes(self.pending))


class Folder:
    def __init__(self):
        self.safe, self.now, self.pending = {}, {}, []  # name -> File or Folder

    def change(self, act):
        act(self.now)
        self.pending.append(act)

    def sync(self):
        self.safe, self.pending = dict(self.now), []

    def hold(self, choose):
        entries = dict(self.safe)
        for act in choose.changes(self.pending):
            act(entries)
        return {name: entry.hold(choose) for name, entry in entries.items()}


def put(name, entry):
    return lambda entries: entries.__setitem__(name, entry)


def remove(name):
    return lambda entries: entries.pop(name, None)


def rename(old, new):
    def act(entries):
        if old in entries:  # its making may be lost
            entries[new] = entries.pop(old)
    return act


def exchange(a, b):
    def act(entries):
        if a in entries and b in entries:
            entries[a], entries[b] = entries[b], entries[a]
    return act


class Disk:
    """Of the folder `root`."""

    def __init__(self, root):
        self.root_path, self.root, self.open = f"{root}/", Folder(), {}

    def at(self, path):
        """The folder that `path` is in, and its last name."""
        assert path.startswith(self.root_path), path
        *folders, name = path[len(self.root_path):].rstrip("/").split("/")
        folder = self.root
        for each in folders:
            folder = folder.now[each]
        return folder, name

    def play(self, call, fd, path, other, data):
        if call == "write":
            return self.open[fd].write(int(path), data)
        if call == "sync":
            return self.open[fd].sync()
        if path + "/" == self.root_path:
            self.open[fd] = self.root
            return None
        folder, name = self.at(path)
        if call in ("open", "create", "append"):
            if call == "create" or (call == "append" and name not in folder.now):
                folder.change(put(name, File()))  # truncating is making it anew
            self.open[fd] = folder.now[name]
            return None
        if other:
            to, new = self.at(other)
            assert to is folder, f"{path} leaves its folder"
        changes = {"mkdir": lambda: put(name, Folder()), "remove": lambda: remove(name), "rename": lambda: rename(name, new),
                   "exchange": lambda: exchange(name, new)}
        return folder.change(changes[call]())

    def load(self, folder, into=None):
        """Starts from what is in a real folder, all of it safe."""
        into = into or self.root
        for path in folder.iterdir():
            entry = Folder() if path.is_dir() else File()
            if path.is_dir():
                self.load(path, entry)
            else:
                entry.safe, entry.size = path.read_bytes(), path.stat().st_size
            into.now[path.name] = into.safe[path.name] = entry


class Nothing:
    """All that was not synced is lost."""
    changes = writes = staticmethod(lambda pending: [])


class Everything:
    changes = writes = staticmethod(lambda pending: pending)


class NamesAlone:
    """Entries before bytes, the order that empties files."""
    changes, writes = Everything.changes, Nothing.writes


class BytesAlone:
    changes, writes = Nothing.changes, Everything.writes


class UpTo:
    """Each folder's changes up to any one of them, any writes."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def changes(self, pending):
        return pending[:self.random.randint(0, len(pending))]

    def writes(self, pending):
        return [one for one in pending if self.random.random() < 0.5]


class Any(UpTo):
    changes = UpTo.writes


def records(log):
    data, at = log.read_bytes(), 0
    while at < len(data):
        end = data.index(b"\n", at)
        head, other = data[at:end].decode().split("\t")
        call, fd, size, path = head.split(" ", 3)
        at = end + 1 + int(size)
        yield call, int(fd), path, other, data[end + 1:at]
