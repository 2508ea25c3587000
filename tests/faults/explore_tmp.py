import sys, os, time, functools
from tests.faults.cases import FaultCase, BucketFaultCase
class ExploreTests(FaultCase):
    async def run_it(self, name, scenario, make, choose=list):
        t=time.time()
        r = await self.each_fault(name, scenario, make, choose)
        print("SECONDS", time.time()-t, r, file=sys.stderr)
        for f in r.findings: print("FINDING", f, file=sys.stderr)
    async def test_prune(self):
        await self.run_it("prune", self.prune, self.new_forks)
    async def test_start(self):
        await self.run_it("start", self.start, self.new_forks, lambda f: list(f)[::8])
class BTests(BucketFaultCase):
    async def run_it(self, name, scenario, make, choose=list):
        t=time.time()
        r = await self.each_fault(name, scenario, make, choose)
        print("SECONDS", time.time()-t, r, file=sys.stderr)
        for f in r.findings: print("FINDING", f, file=sys.stderr)
    async def test_miss(self):
        await self.run_it("miss bucket", self.miss, self.new_node, lambda f: list(f)[::10])
    async def test_hit(self):
        await self.run_it("hit bucket", self.hit, self.new_node)
