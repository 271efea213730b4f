"""What encodings cost on this machine: time side by side in one process, memory each in a process of its own."""
