"""Reading topics: planning on the driver, fetching and decoding on the executors."""
