"""What others have written, run with tidegate and without: the test suites of the SDKs. See docs/conformance.md."""
