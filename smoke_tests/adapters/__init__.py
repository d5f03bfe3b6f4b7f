"""One adapter per framework, holding only what differs between frameworks."""
