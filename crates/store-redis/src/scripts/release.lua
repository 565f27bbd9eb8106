-- Ends a quarantine that is active. KEYS quarantines, releases; ARGV id, moment. Returns 1 if it was, otherwise 0.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
return redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2])
