"""What a build is made from: files by hash, unpacked safely, patched as a whole or not at all."""
