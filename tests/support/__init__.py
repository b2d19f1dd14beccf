"""What tests share: a shop with its outbox, programs to start and kill, hostile handlers, proxies."""
