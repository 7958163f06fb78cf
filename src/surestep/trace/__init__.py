"""What has been recorded since the last boundary, and which trace it is."""
