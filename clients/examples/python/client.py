"""Orders what it is told to, once, however often it is started: PYTHONPATH=../../python python3 client.py "order 17" apples"""

import os
import sys

from oncegate_client import Client, DidNotHappen, FileKeyStore, Happened, Limits

name, item = sys.argv[1:] or ("order 17", "apples")
client = Client(Limits(deadline_s=60), keys=FileKeyStore(os.environ.get("KEYS", "keys")))
url = f"{os.environ.get('GATEWAY', 'http://127.0.0.1:8080')}/orders"
result = client.run(url, headers={"authorization": "Bearer me"}, json={"item": item}, name=name)

if isinstance(result, Happened):
    print(f"ordered{', earlier' if result.replayed else ''}: {(result.answer.body or b'').decode()}")
elif isinstance(result, DidNotHappen):
    print(f"not ordered: {result.why}")
else:
    print(f"not known yet ({result.why}): start this again, and it goes on with the key {result.key}")

# Here a real program would first write the result down. Then the key may go: a later order of this name is another order.
if os.environ.get("DONE"):
    client.done(result)
sys.exit(1 if result.outcome == "may_have_happened" else 0)
