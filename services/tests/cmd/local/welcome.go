package main

import "fmt"

// welcome is what the person sees once everything works.
func welcome(base string, cfg config) string {
	return fmt.Sprintf(`
  Queen is ready:  %[1]s
  Health and metrics: broker %[2]s, maintainer %[3]s, sweeper %[4]s

  Try it from another terminal:

    # messages
    curl -s %[1]s/api/v1/push -d '{"items":[{"queue":"orders","partition":"customer-7","payload":{"n":1}}]}'
    curl -s '%[1]s/api/v1/pop/queue/orders?batch=10&autoAck=true'
    curl -s %[1]s/api/v1/resources/queues

    # a key that lives for a minute
    curl -s -X PUT %[1]s/api/v1/kv/carts/customer-7 -d '{"value":{"items":2},"ttlSeconds":60}'
    curl -s %[1]s/api/v1/kv/carts/customer-7

    # a message in five seconds, and its consumer
    curl -s %[1]s/api/v1/timers -d '{"operations":[{"op":"schedule","queue":"reminders","timerKey":"cart-7","txn":"cart-7","delayMs":5000,"payload":"'$(printf '{"cart":7}' | base64)'"}]}'
    curl -s '%[1]s/api/v1/pop/queue/reminders?wait=true&timeout=10000&autoAck=true'

  Data and logs are in %[5]s/. Ctrl-C stops everything; make run RESET=1 starts empty.

`, base, loopback(cfg.opsPort), loopback(cfg.maintainerOpsPort), loopback(cfg.sweeperOpsPort), defaultDir)
}
